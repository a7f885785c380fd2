// Package observe has a process tell operators of itself, whatever runs in it: health, metrics, Go's profiles, the
// scheduler's explanations, the sessions of applications. A Process gathers what the parts of a process say; a gateway has
// its routes among its own, and a process without one serves them on an address of its own.
//
// A Scheduler is the one who looks at an engine. Statistics, page, metrics and admission read what one look has found,
// which is the same for all of them: readers take no lock of the engine, however many there are.
//
// What is traced of a call, and of how many calls, is package spans, beside this one; package tracing sends spans to a collector.
package observe

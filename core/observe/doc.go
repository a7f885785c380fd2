// Package observe shows operators the state of a process, whatever runs in it: health, metrics, Go's profiles, the
// scheduler's explanations, the sessions of applications. A Process collects the state of its parts. A gateway adds
// the routes to its own; a process without a gateway serves them on an address of their own.
//
// A Scheduler takes snapshots of an engine. Statistics, page, metrics and admission all read the same snapshot, so
// readers take no lock of the engine, however many there are.
//
// Package spans decides what is traced of which calls; package tracing sends the spans to a collector.
package observe

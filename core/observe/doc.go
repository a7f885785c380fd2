// Package observe publishes a process's state for operators: health, metrics, Go's profiles, the scheduler's
// explanations, and the sessions of applications. A Process collects what its parts report. A gateway serves these
// routes among its own; a process without a gateway serves them on a separate address.
//
// A Scheduler reads an engine. Statistics, page, metrics and admission share its latest snapshot, so that readers
// take no lock of the engine, however many there are.
//
// Package spans defines the spans of a call and the share of traced calls; package tracing sends spans to a
// collector.
package observe

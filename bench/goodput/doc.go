// Package goodput finds, in virtual time, the highest load at which a scheduling policy meets its SLOs. It holds the
// settings of Symphony's evaluation, draws their arrivals, searches the rate by bisection, computes a bound that no
// schedule exceeds, and writes tables, CSV and SVG. It also runs arrivals from files once (Replay). It makes no
// scheduling decisions: policies are core/sched through sim.Downbeat, and those of package policy. Equal options give
// equal results.
package goodput

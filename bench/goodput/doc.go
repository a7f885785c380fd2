// Package goodput finds the highest load at which a scheduling policy keeps its promise, in virtual
// time: it holds the settings of Symphony's evaluation, draws their arrivals, searches the rate by
// bisection, computes a bound that no schedule exceeds, and writes tables, CSV and SVG. It also
// runs anyone's arrivals once (Schedule). It decides nothing: policies are core/sched through
// sim.Downbeat, and package policy for the others. Equal options give equal results.
package goodput

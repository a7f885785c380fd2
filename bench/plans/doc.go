// Package plans compares the decisions of core/plan with exact optima by bench/solver, exhaustive search, and
// simulation of the scheduler itself. It generates the instances, runs both sides and reports; it decides nothing.
package plans

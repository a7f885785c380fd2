// Package plans compares the decisions of core/plan with what they must be near to: exact optima by
// bench/solver, exhaustive search, and simulation of the scheduler itself. It makes the instances,
// runs both sides and reports; it decides nothing.
package plans

// Package accuracy compares, in virtual time, policies that answer a family's requests with variants of different
// accuracy. It has Proteus's traces and our own, Proteus's measures and figures, and as a bound the optimum of the
// linear relaxation. Inputs come from bench/family, policies from bench/policy/scaling.
package accuracy

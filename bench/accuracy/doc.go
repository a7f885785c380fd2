// Package accuracy compares policies that answer families of requests with variants of different accuracy, in
// virtual time: Proteus's traces and our own, its measures, its figures, and as the bound the optimum of the
// linear relaxation. Inputs come from bench/family, policies from bench/policy/scaling.
package accuracy

// Package arrivals says when requests come, and for which model: drawn from a distribution of gaps and a popularity
// (Unit, Shape), or read from a trace (ReadTrace). The load generator sends what the simulator simulates, so that a
// seed and a rate mean the same requests to both. The package imports nothing of this module and reads no clock.
package arrivals

// Package arrivals generates the arrival times of requests and their models, drawn from a distribution of gaps and a
// popularity (Unit, Shape) or read from a trace (ReadTrace). The load generator and the simulator share it, so that a
// seed and a rate mean the same requests in both. The package imports nothing of this module and reads no clock.
package arrivals

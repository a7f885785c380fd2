// Package dispatch measures how many requests per second the scheduler dispatches, and how late, as figure 11 (left)
// of the Symphony paper does: requests and GPUs are objects within the process, no message is sent and no GPU runs.
//
// A rig drives the engine as in production: every request goes through a frontend session's Submit (duplicate check,
// queue), a partition, a ranker, a backend session's Execute, and ends with Done. The GPUs are emulated: a batch is
// reported done after the time in its profile. Arrivals are open-loop: each has an intended time, and lag is the
// generator's delay relative to it. Generator, emulated GPUs and engine share the measured core, and all of their
// time counts. If the system allows it, the process runs with real-time priority, so that a lag is its own and not
// due to another process's time slice.
package dispatch

// Package dispatch measures how many requests per second the scheduler dispatches, and how late,
// as Symphony's figure 11 (left) does: requests and GPUs are objects within the process, no
// message is sent and no GPU runs.
//
// A rig drives the engine as it serves: every request goes through a frontend session's Submit
// (duplicate check, queue), a partition, a ranker, a backend session's Execute, and ends
// with Done. The GPUs are emulated: a batch is reported done when its profile says so. Arrivals
// are open-loop: each has an intended time, and lag is how far the generator falls behind it.
// Generator, emulated GPUs and engine share the core that is measured, and all of their time is
// counted. Where the system allows, the process runs with real-time priority: a lag is ours then, not that
// of a neighbour who had the core for a time slice.
package dispatch

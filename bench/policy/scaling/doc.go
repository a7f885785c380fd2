// Package scaling holds policies that serve families of model variants on several kinds of devices and scale accuracy
// with load: Proteus (Ahmad et al., ASPLOS '24) with its ablations, and the systems with which it is compared. Each
// is in its best honest form on the same sim.World: the same profiles, arrivals, load times and accounting of drops.
// Each file names the section that it follows, and its own choices where the paper leaves them open.
//
// A hosted policy keeps one variant on a device and binds a request to a device when it arrives. Hosted policies
// differ in their planner, which chooses the hosted variants, and in their batching rule.
package scaling

// Package scaling holds policies that serve families of model variants on several kinds of devices and
// scale accuracy with load: Proteus (Ahmad et al., ASPLOS '24) with its ablations, and the systems that it
// is compared with. Each is in its best honest form over the same sim.World: the same profiles, arrivals,
// load times and accounting of drops. Each file says which section it follows and where it had to choose.
//
// A hosted policy keeps one variant on a device and binds a request to a device when it arrives. What
// differs between hosted policies is a planner, which says what devices host, and a batching rule.
package scaling

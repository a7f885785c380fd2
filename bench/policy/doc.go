// Package policy holds the scheduling policies that Downbeat is compared with, each in its best
// honest form over the same World: the same profiles, arrivals, network delays and accounting of
// drops. Each file says which paper and section it follows and where it had to choose.
package policy

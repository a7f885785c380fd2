// Package policy holds the scheduling policies with which Downbeat is compared, each in its best honest form on the
// same World: the same profiles, arrivals, network delays and accounting of drops. Each file names the paper and
// section that it follows, and its own choices where the paper leaves them open.
package policy

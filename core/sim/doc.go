// Package sim runs scheduling decisions in virtual time: World with exact GPUs for comparisons of
// policies, Cluster with lossy messages and failing backends for dependability. Both run the code
// of core/sched that serves in production, unchanged. Everything is drawn from a seed and replays
// from it. Production code never imports this package.
package sim

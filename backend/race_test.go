//go:build race

package backend

// raceEnabled means that pools drop some of their objects, so allocations cannot be counted.
const raceEnabled = true

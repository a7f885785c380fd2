//go:build race

package backend

// raceEnabled says that pools drop some of what they get, so that allocations cannot be counted.
const raceEnabled = true

//go:build linux

package chaos

import "slices"

// Experiments returns all experiments, in the order in which they run.
func Experiments() []Experiment {
	return slices.Concat(loadExperiments(), linkExperiments(), []Experiment{slowReads(5_000_000), slowReads(1_000_000)}, gpuExperiments(),
		restartExperiments(), schedulerExperiments(), repositoryExperiments(), strangerExperiments(), soakExperiments())
}

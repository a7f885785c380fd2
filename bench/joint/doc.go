// Package joint is one experiment for four papers: a trace with families of variants, sessions of frames through
// DAGs, and drifting models, on 16 emulated GPUs of two kinds, in virtual time. It compares Downbeat with each
// paper's own method (Symphony, Proteus, Rim, AdaInf) and with all four combined.
//
// The clock and the GPUs are core/sim's. bench/drift really trains the drifting models in the GPU time that a policy
// left for it here. A seed determines a run.
//
// The package is not safe for concurrent use.
package joint

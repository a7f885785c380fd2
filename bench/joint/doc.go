// Package joint is one experiment for four papers at once: a trace with families of variants, sessions of frames through DAGs and
// models that drift, on 16 emulated GPUs of two kinds, in virtual time. Downbeat serves it beside each paper's own method (Symphony,
// Proteus, Rim, AdaInf) and beside all four put on top of one another.
//
// The clock and the GPUs are core/sim's. What drifting models answer is learnt for real by bench/drift, in the GPU time that a policy
// left for it here. A run follows from its seed.
//
// Nothing here may be called from two goroutines at once.
package joint

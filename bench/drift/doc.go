// Package drift measures what learning beside serving is worth when the world changes (AdaInf §5; EVIDENCE §4): policies
// serve the same streams of rendered street scenes, whose light and weather change between periods, in virtual time. The
// clock and the GPUs are virtual; the weights, the gradients and every answer that an accuracy counts are real, computed
// by ONNX Runtime on the processor.
//
// What the GPUs do with requests is simulated by core/sim; what is learnt costs GPU time by the same stated profile. It is
// deterministic by seed on one kind of processor.
//
// Nothing here may be called from two goroutines at once.
package drift

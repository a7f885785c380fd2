// Package drift measures the value of learning beside serving when conditions change (AdaInf §5; EVIDENCE §4).
// Policies serve the same streams of rendered street scenes, whose light and weather change between periods, in
// virtual time. The clock and the GPUs are virtual. The weights, the gradients and every answer that counts for an
// accuracy are real, computed by ONNX Runtime on the processor.
//
// core/sim simulates requests on the GPUs; training costs GPU time by the same stated profile. Results are
// deterministic by seed on one kind of processor.
//
// The package is not safe for concurrent use.
package drift

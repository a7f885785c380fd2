// Package residency decides which contents stay in device memory when not all models fit, and moves the others: the
// memory manager of AdaInf §3.4.2.
//
// A content is a layer's parameters or an intermediate output. Its score is S = (1−a)·R + a·L, with its reuse time R,
// its model's SLO L, and a = 0.4 by default (AdaInf §4). A content with a high score is needed late, or its requests
// have much slack, so high scores are evicted first. The mean scores of the data types decide which type is evicted
// first; within a type the content with the highest score goes. Evicted contents with low scores move to pinned host
// memory and the others to pageable memory. Parameters stay between requests; intermediates are freed with their batch
// (Observation 9).
//
// Table decides. It is deterministic and uses no clock and no device. Store performs the decisions on a cuda.Device,
// as copies in stream order, and counts them.
//
// Invariants:
//
//	R1  Contents in use never move.
//	R2  Device bytes and pinned bytes never exceed their bounds.
//	R3  A content is evicted only if every content of its type with a higher score is in use or already evicted.
//	R4  The same calls give the same moves.
package residency

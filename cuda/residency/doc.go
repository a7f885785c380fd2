// Package residency decides what stays in device memory when models do not all fit, and moves it: the
// memory manager of AdaInf §3.4.2.
//
// Each content (a layer's parameters, an intermediate output) has the score S = (1−a)·R + a·L with R
// its reuse time, L its model's SLO and a = 0.4 by default (AdaInf §4). The higher the score, the later
// it is needed and the more slack its requests have, so the earlier it goes. Which data type goes first
// is decided by the types' mean scores; within the type the contents with the highest scores go. Evicted
// contents with low scores are kept in pinned host memory, the rest in pageable memory. Parameters are
// kept between requests; intermediates are freed with their batch (Observation 9).
//
// Table is the decision: pure, deterministic, no clock, no device. Store carries it out on a
// cuda.Device with copies in stream order and counts what it did.
//
// Invariants: R1 contents in use are never moved. R2 device and pinned bytes never exceed their bounds.
// R3 of contents of one type, none with a lower score is evicted while one with a higher score that is
// not in use stays. R4 the same calls give the same moves.
package residency

// Package profile models how long a batch takes: ℓ(b) = αb + β (Symphony §3.1), fitted from
// measurements or taken from a table of measured sizes. It knows nothing of time or queues.
package profile

import "time"

// Profile is the execution latency of one model on one kind of GPU.
//
// A Profile is immutable after New and safe for concurrent use.
type Profile struct {
	table []time.Duration // table[b-1] = ℓ(b), strictly positive, non-decreasing
}

// New builds a profile from ℓ(1)…ℓ(n). It refuses an empty table, entries ≤ 0 and a table that
// decreases, naming the batch size.
//
// Linear builds ℓ(b) = alpha·b + beta up to batchMax.
//
// Exec returns ℓ(b) for 1 ≤ b ≤ Max(); Exec(b) for b > Max() extends by the last slope so that a
// scheduler may ask for ℓ(b+1) at the limit.
//
// BatchMax returns the largest batch with ℓ(b) ≤ d, 0 when none, at most Max().
var _ = 0

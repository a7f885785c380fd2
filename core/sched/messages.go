package sched

// Candidate is a model's newest candidate. Partition → Ranker.
type Candidate struct {
	Model      ModelID
	SubCluster uint32
	Seq        uint64 // grows with each candidate of the id, also when its model is replaced; older ones are ignored
	Size       uint32 // requests that a batch could take now; 0: the model has none
	Gone       bool   // the model was removed, or has moved to another sub-cluster
	Ripe       bool   // waiting longer gains nothing: a GPU is wanted now
	ExecAt     Time   // when the candidate becomes ripe by itself
	Rank       Time   // ripe candidates are served in this order
	Last       Time   // the model's latest arrival
	Pace       Pace   // how soon the next arrival is expected
	Demand     int64  // λ·ℓ(T)/T in millionths of a GPU, at the estimated rate
	Least      int64  // the same with the variant that takes the least GPU time; Demand if there is only one
	Avoid      Groups // no GPU of these groups takes any of its requests
}

// Grant gives a GPU to a model. Ranker → Partition. Exactly one Free must answer it.
type Grant struct {
	Model      ModelID
	SubCluster uint32 // the Ranker's
	GPU        GPUID
	Epoch      uint32  // the GPU's life; Free returns it
	Group      Groups  // the GPU's
	Early      bool    // the candidate was not ripe
	Trial      bool    // the GPU was sick: send one request to see whether it still is, not to lose more
	Growth     float64 // if Early: the growth that may be forgone; above it the GPU is returned unused
	Load       float64 // u = Σ demand / GPUs of the sub-cluster
	Least      float64 // u for the case that every service uses the variant that takes the least GPU time
	FreeAt     Time    // when the GPU is free; may be slightly in the future
}

// Free answers a Grant. Partition → Ranker.
type Free struct {
	Model      ModelID
	SubCluster uint32
	GPU        GPUID
	Epoch      uint32
	Batch      BatchID // 0: the GPU was not used
	Start      Time    // the batch's ExecAt
	FreeAt     Time    // when the GPU is free again
}

// Outputs are a Partition's pending actions. The driver consumes them after each burst of calls and calls Reset;
// until then they grow.
type Outputs struct {
	Candidates []Candidate
	Frees      []Free
	Forecasts  []Forecast
	Batches    []Batch // their requests are valid until Reset
	Drops      []Drop
	memory     memory
}

// Reset empties the outputs and keeps their memory.
func (o *Outputs) Reset() {
	o.Candidates = o.Candidates[:0]
	o.Frees = o.Frees[:0]
	o.Forecasts = o.Forecasts[:0]
	o.resetActions()
}

// resetActions empties the driver's actions, and keeps the messages to Rankers.
func (o *Outputs) resetActions() {
	for i := range o.Batches {
		o.memory.give(o.Batches[i].piece)
	}
	o.Batches = o.Batches[:0]
	o.Drops = o.Drops[:0]
}

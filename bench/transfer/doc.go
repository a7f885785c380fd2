// Package transfer measures the data plane: round trips of small messages and fetches of inputs, by provider, beside
// plain C doing the same on the same host in the same run. Rounds of the two alternate. The peers run in a child
// process (the same binary, command "bench transfer -serve").
//
// It tunes nothing. Its reference is not a baseline system but the cost of the kernel's calls alone.
package transfer

import "time"

// Config is the configuration of a measurement.
type Config struct {
	Providers []string      // of tcp, shm, local, verbs
	Ops       []string      // of echo, read, incast; empty: all. Or only Stages
	Peers     int           // incast: peers that are read at once
	Bytes     int           // incast and fetch: bytes per peer
	Rounds    int           // alternations of provider and reference
	Each      int           // measurements per round
	Spin      time.Duration // of the measuring node: rdma.Config.Spin
	Listen    string        // listen address of the child's nodes and the reference
	NetNS     string        // network namespace of the child ("ip netns"); empty: this one
	Child     []string      // command line that runs Serve in a child: binary and leading arguments
}

// Row is one line of the result. Reference values are 0 if there is none.
type Row struct {
	Provider  string  `json:"provider"`
	Op        string  `json:"op"`
	Bytes     int     `json:"bytes"`
	Peers     int     `json:"peers"`
	P50       int64   `json:"p50_ns"`
	P99       int64   `json:"p99_ns"`
	P999      int64   `json:"p999_ns"`
	P9999     int64   `json:"p9999_ns"`
	Reference string  `json:"reference"`
	RefP50    int64   `json:"ref_p50_ns"`
	RefP99    int64   `json:"ref_p99_ns"`
	RefP999   int64   `json:"ref_p999_ns"`
	RefP9999  int64   `json:"ref_p9999_ns"`
	RatioP50  float64 `json:"ratio_p50"`
	RatioP99  float64 `json:"ratio_p99"`
	// Medians over the rounds of the ratio to the reference's next round, which other load on the host affects less.
	RoundP50 float64 `json:"round_ratio_p50"`
	RoundP99 float64 `json:"round_ratio_p99"`
}

const (
	echoBytes = 64
	patience  = 10 * time.Second // time limit of any one step
	roundMax  = time.Minute      // time limit of a round's measurements
)

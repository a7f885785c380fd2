// Package transfer measures the data plane: round trips of small messages and fetches of inputs,
// by provider, beside plain C doing the same on the same host in the same run. Rounds of the two
// alternate. The peers run in a child process (the same binary, command "bench transfer -serve").
//
// It does not tune anything, and its reference is not a baseline system: it is the least that the
// kernel's calls cost.
package transfer

import "time"

// Config says what to measure.
type Config struct {
	Providers []string      // of tcp, shm, local, verbs
	Ops       []string      // of echo, read, incast; empty: all. Or Stages alone
	Peers     int           // incast: peers read at once
	Bytes     int           // incast and fetch: bytes per peer
	Rounds    int           // alternations of provider and reference
	Each      int           // measurements per round
	Spin      time.Duration // of the measuring node: rdma.Config.Spin
	Listen    string        // address that the child's nodes and the reference listen on
	NetNS     string        // network namespace that the child runs in ("ip netns"); empty: this one
	Child     []string      // command line that runs Serve in a child: binary and leading arguments
}

// Row is one line of the result. Reference values are 0 where there is none.
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
	// Medians over the rounds of the ratio to the reference's next round: less at the mercy of what else
	// the host does.
	RoundP50 float64 `json:"round_ratio_p50"`
	RoundP99 float64 `json:"round_ratio_p99"`
}

const (
	echoBytes = 64
	patience  = 10 * time.Second // for any one step to end
	roundMax  = time.Minute      // for a round's measurements
)

package gateway

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/frontend"
)

// Canary says which versions answer a model's requests that name none. It holds in this gateway, until it is ended or the
// gateway is.
type Canary struct {
	Model     string  `json:"model"`
	Base      string  `json:"base"`      // the version that answers what Version does not
	Version   string  `json:"version"`   // the version that is tried; empty: none, Base answers all
	Share     float64 `json:"share"`     // of the requests: those that Version answers, 0 to 1
	Shadow    float64 `json:"shadow"`    // of Base's requests: those that Version gets a copy of, 0 to 1; nobody waits for its answers
	Tolerance float64 `json:"tolerance"` // of numbers in two answers: what they may differ by, relative to the larger, or absolute below 1
}

// CanaryStatus is a canary with what has been counted since its versions were set.
type CanaryStatus struct {
	Canary
	BaseEnds    CanaryEnds `json:"base_ends"`
	VersionEnds CanaryEnds `json:"version_ends"`
	Copies      CopyEnds   `json:"copies"`
}

// CanaryEnds are requests that one version was asked.
type CanaryEnds struct {
	Good    uint64  `json:"good"` // answered in time
	Bad     uint64  `json:"bad"`  // late, or without an output
	Seconds float64 `json:"seconds"`
}

// CopyEnds are the copies that the tried version got, by how its answer compares with the one that the client got.
type CopyEnds struct {
	Same       uint64  `json:"same"`
	Different  uint64  `json:"different"`
	Failed     uint64  `json:"failed"`     // without an output
	Skipped    uint64  `json:"skipped"`    // not made, as too many were under way
	Difference float64 `json:"difference"` // the largest so far
}

// canary is one model's rule at work.
type canary struct {
	rule          Canary // immutable: a change makes another canary
	share, shadow fraction
	counts        *canaryCounts // kept over a change of shares
}

// canaryCounts are what CanaryStatus tells.
type canaryCounts struct {
	mu            sync.Mutex
	base, version CanaryEnds // guarded by mu
	copies        CopyEnds   // guarded by mu
}

// canaries are the rules of all models. The zero value has none.
type canaries struct {
	byModel atomic.Pointer[map[string]*canary] // nil: none; replaced as a whole
	mu      sync.Mutex                         // held by who replaces it
}

// fraction picks a share of what comes, evenly: of any n in a row share·n, to within one.
type fraction struct{ sum atomic.Uint64 }

// picks tells whether the next one is picked.
func (f *fraction) picks(share float64) bool {
	// The upper half of the sum counts those that have been picked so far.
	step := uint64(share * (1 << 32))
	sum := f.sum.Add(step)
	return sum>>32 != (sum-step)>>32
}

// ofModel returns a model's canary, or nil.
func (c *canaries) ofModel(name string) *canary {
	all := c.byModel.Load()
	if all == nil {
		return nil
	}
	return (*all)[name]
}

// set puts a rule in force, or ends a model's where next is nil.
func (c *canaries) set(name string, next func(before *canary) *canary) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[string]*canary{}
	if before := c.byModel.Load(); before != nil {
		all = maps.Clone(*before)
	}

	// Counts are of two versions: with others they begin anew.
	rule := next(all[name])
	delete(all, name)
	if rule != nil {
		all[name] = rule
	}

	// Without a rule no request looks for one.
	if len(all) == 0 {
		c.byModel.Store(nil)
		return
	}
	c.byModel.Store(&all)
}

// allStatus returns the rules with their counts, by model.
func (c *canaries) allStatus() []CanaryStatus {
	list := []CanaryStatus{}
	if all := c.byModel.Load(); all != nil {
		for _, x := range *all {
			list = append(list, x.status())
		}
	}
	slices.SortFunc(list, func(a, b CanaryStatus) int { return cmp.Compare(a.Model, b.Model) })
	return list
}

func (c *canary) status() CanaryStatus {
	n := c.counts
	n.mu.Lock()
	defer n.mu.Unlock()
	return CanaryStatus{Canary: c.rule, BaseEnds: n.base, VersionEnds: n.version, Copies: n.copies}
}

// chooseVersion lets a model's canary say which version answers a call that names none.
func (g *Gateway) chooseVersion(in *inference) {
	c := g.canaries.ofModel(in.model.Name)
	if c == nil || in.wanted != "" || in.model.Sequence != nil {
		return
	}

	// A base that is not served answers nothing: the newest that is does, as without a canary.
	base := g.client.Model(c.rule.Model, c.rule.Base)
	if base == nil || !base.Ready {
		return
	}
	in.model, in.canary = base, c
	if v := g.triedVersion(c, base); v != nil && c.share.picks(c.rule.Share) {
		in.model, in.tried = v, true
	}
}

// triedVersion returns the version that a canary tries, if it is served and takes and gives what base does.
func (g *Gateway) triedVersion(c *canary, base *frontend.Model) *frontend.Model {
	if c.rule.Version == "" {
		return nil
	}
	v := g.client.Model(c.rule.Model, c.rule.Version)
	if v == nil || !v.Ready || !sameFaces(v, base) {
		return nil
	}
	return v
}

// sameFaces tells whether clients see the same tensors of two versions.
func sameFaces(a, b *frontend.Model) bool {
	return a.Unbatched == b.Unbatched && a.Optional == b.Optional && model.SameTensors(a.Inputs, b.Inputs) && model.SameTensors(a.Outputs, b.Outputs)
}

// countCanary counts the rows of a call that a canary chose the version of.
func (in *inference) countCanary(began time.Time, calls []frontend.Call) {
	if in.canary == nil {
		return
	}

	// Rows of a call end together, so they took the same time.
	elapsed := time.Since(began).Seconds()
	n := in.canary.counts
	n.mu.Lock()
	defer n.mu.Unlock()
	ends := &n.base
	if in.tried {
		ends = &n.version
	}
	for i := range calls {
		if calls[i].Err == nil && calls[i].Result.Slack >= 0 {
			ends.Good++
		} else {
			ends.Bad++
		}
		ends.Seconds += elapsed
	}
}

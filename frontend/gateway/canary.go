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

// Canary is the rule that chooses which version answers a model's requests that name none. It holds in this gateway
// until the canary or the gateway ends.
type Canary struct {
	Model     string  `json:"model"`
	Base      string  `json:"base"`      // the version that answers the requests that Version does not
	Version   string  `json:"version"`   // the version on trial; empty: none, Base answers all
	Share     float64 `json:"share"`     // share of the requests that Version answers, 0 to 1
	Shadow    float64 `json:"shadow"`    // share of Base's requests copied to Version, 0 to 1; no client waits
	Tolerance float64 `json:"tolerance"` // two numbers are equal within it: relative to the larger, or absolute below 1
}

// CanaryStatus is a canary with its counts since its versions were set.
type CanaryStatus struct {
	Canary
	BaseEnds    CanaryEnds `json:"base_ends"`
	VersionEnds CanaryEnds `json:"version_ends"`
	Copies      CopyEnds   `json:"copies"`
}

// CanaryEnds counts the outcomes of one version's requests.
type CanaryEnds struct {
	Good    uint64  `json:"good"` // answered in time
	Bad     uint64  `json:"bad"`  // late, or without an output
	Seconds float64 `json:"seconds"`
}

// CopyEnds counts the copies sent to the version on trial, by how its answer compares with the client's.
type CopyEnds struct {
	Same       uint64  `json:"same"`
	Different  uint64  `json:"different"`
	Failed     uint64  `json:"failed"`     // without an output
	Skipped    uint64  `json:"skipped"`    // not made because too many were under way
	Difference float64 `json:"difference"` // the largest so far
}

// canary is one model's rule in force, with its counts.
type canary struct {
	rule          Canary // immutable: a change creates another canary
	share, shadow fraction
	counts        *canaryCounts // kept when only the shares change
}

// canaryCounts are the counts that CanaryStatus reports.
type canaryCounts struct {
	mu            sync.Mutex
	base, version CanaryEnds // guarded by mu
	copies        CopyEnds   // guarded by mu
}

// canaries holds the rules of all models. The zero value has none.
type canaries struct {
	byModel atomic.Pointer[map[string]*canary] // nil: none; replaced as a whole
	mu      sync.Mutex                         // held while byModel is replaced
}

// fraction selects a share of a sequence, evenly: of any n consecutive items share·n, to within one.
type fraction struct{ sum atomic.Uint64 }

// picks reports whether the next item is selected.
func (f *fraction) picks(share float64) bool {
	// The upper half of the sum counts the items selected so far.
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

// set puts a model's rule in force, or ends it if next returns nil.
func (c *canaries) set(name string, next func(before *canary) *canary) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[string]*canary{}
	if before := c.byModel.Load(); before != nil {
		all = maps.Clone(*before)
	}

	// The counts belong to two versions: other versions start new counts.
	rule := next(all[name])
	delete(all, name)
	if rule != nil {
		all[name] = rule
	}

	// If no model has a rule, requests skip the lookup.
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

// chooseVersion lets a model's canary choose the version that answers a call that names none.
func (g *Gateway) chooseVersion(in *inference) {
	c := g.canaries.ofModel(in.model.Name)
	if c == nil || in.wanted != "" || in.model.Sequence != nil {
		return
	}

	// An unserved base cannot answer: the newest served version does, as without a canary.
	base := g.client.Model(c.rule.Model, c.rule.Base)
	if base == nil || !base.Ready {
		return
	}
	in.model, in.canary = base, c
	if v := g.triedVersion(c, base); v != nil && c.share.picks(c.rule.Share) {
		in.model, in.tried = v, true
	}
}

// triedVersion returns a canary's version on trial, if it is served and has base's inputs and outputs.
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

// sameFaces reports whether two versions have the same tensors for clients.
func sameFaces(a, b *frontend.Model) bool {
	return a.Unbatched == b.Unbatched && a.Optional == b.Optional && model.SameTensors(a.Inputs, b.Inputs) && model.SameTensors(a.Outputs, b.Outputs)
}

// countCanary counts the rows of a call whose version a canary chose.
func (in *inference) countCanary(began time.Time, calls []frontend.Call) {
	if in.canary == nil {
		return
	}

	// The rows of a call end together, so all took the same time.
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

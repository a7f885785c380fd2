package backend

import (
	"cmp"
	"slices"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// Reports to the scheduler: the hello lists the loaded and the loadable models, then each change follows. A session
// opens with the hello of the start, so later changes are repeated when one opens.

// Hello returns the description that opens a session with the scheduler.
func (b *Backend) Hello() Hello {
	h := Hello{Version: wire.Version, Name: b.config.Name, Token: b.config.Token, SubCluster: b.config.SubCluster, DataAddr: b.node.Addr()}
	for _, g := range b.gpus {
		h.GPUs, h.Details = append(h.GPUs, g.name), append(h.Details, g.detail(b.config.hostKind))
	}
	for i := range b.modelEntries() {
		h.Models = append(h.Models, b.describeModel(uint32(i)))
	}

	b.limitLabels(h.Models)

	b.mu.Lock()
	defer b.mu.Unlock()
	h.Failed = b.config.failed[:min(len(b.config.failed), wire.ModelsMax)]

	// Changes since the start are part of this hello, not reports after it.
	if b.renewed {
		h.Failed = withoutModels(b.unserved, h.Models)
	}
	b.greeted = h.Models
	return h
}

// detail describes the GPU to plans. It is the description of its first executor, which takes as many models as it
// can. An executor on the processor has the host's kind, even if others emulate models beside it.
func (g *gpu) detail(host string) (d wire.GPUDetail) {
	if len(g.executors) == 0 {
		return d
	}
	c := g.executors[0].Capabilities()
	if c.Kind == "" && c.OnHost {
		c.Kind = host
	}
	return wire.GPUDetail{Kind: c.Kind[:min(len(c.Kind), wire.NameBytesMax)], Memory: uint64(max(0, c.Memory))}
}

// withoutModels removes from failed the models that a hello describes: it must name each once.
func withoutModels(failed []model.Info, models []wire.BackendModel) (all []model.Info) {
	for _, f := range failed {
		if !slices.ContainsFunc(models, func(m wire.BackendModel) bool { return m.Info.Name == f.Name && m.Info.Version == f.Version }) {
			all = append(all, f)
		}
	}
	return all
}

// describeModel describes a model to the scheduler.
func (b *Backend) describeModel(model uint32) wire.BackendModel {
	m := b.modelEntries()[model].model
	d := wire.BackendModel{Info: m.Info(), Loaded: make([]bool, len(b.gpus))}
	if m.Profile != nil && m.Profile.Max() >= m.BatchMax {
		d.Profile = m.Profile.Table(m.BatchMax)
	}

	// Footprints and load times may differ by GPU: plans use the largest.
	for i, g := range b.gpus {
		if r := g.routeOf(model); r != nil {
			d.Loaded[i] = true
			d.Info.Shared = max(d.Info.Shared, uint64(r.footprint.Shared))
			d.Info.Static, d.Info.Dynamic = max(d.Info.Static, uint64(r.footprint.Static)), max(d.Info.Dynamic, uint64(r.footprint.Dynamic))
			d.Load = max(d.Load, r.loadTime+r.warmTime)
		}
	}

	// A model that no GPU holds has the memory and the load time that `downbeat profile` measured.
	p, ok := m.Source.Profile(b.config.hostKind)
	if ok && d.Info.Static == 0 {
		d.Info.Static, d.Info.Dynamic = uint64(p.StaticBytes), uint64(p.DynamicBytes)
	}
	d.Load = cmp.Or(d.Load, p.LoadNS+p.WarmUpNS)
	return d
}

// tellLoadable reports a model that is new, or has a new profile or other shapes.
func (b *Backend) tellLoadable(model uint32) {
	d := b.describeModel(model)
	b.limitLabels([]wire.BackendModel{d})

	// Before the link is attached the hello will contain it.
	if l := b.linkNow(); l != nil {
		if err := l.Offer([]wire.Loadable{{Number: model, Model: d}}); err != nil {
			b.log.Debug("loadable model not sent", "err", err)
		}
	}
}

// tellLoaded reports that a GPU takes batches of a model, and the time that its load took, now or earlier.
func (b *Backend) tellLoaded(c change, r *route) {
	b.tellState(c, wire.PlacementReport{State: wire.Loaded, Load: int64(r.loadTime), WarmUp: int64(r.warmTime),
		Static: uint64(r.footprint.Static), Dynamic: uint64(r.footprint.Dynamic)})

	// Shared memory is not part of a report, and unknown before the load.
	if r.footprint.Shared > 0 {
		b.tellLoadable(c.model)
	}
}

// tellFailed reports that a placement failed, and returns the reason.
func (b *Backend) tellFailed(c change, why error) error {
	b.tellState(c, wire.PlacementReport{State: wire.LoadFailed, Text: why.Error()})
	return why
}

// tellState sends a report on one model on one GPU.
func (b *Backend) tellState(c change, r wire.PlacementReport) {
	r.Number, r.GPU, r.Model = c.number, c.gpu.number, c.model
	b.sendReport(r)
}

func (b *Backend) sendReport(r wire.PlacementReport) {
	if l := b.linkNow(); l != nil {
		if err := l.Report([]wire.PlacementReport{r}); err != nil {
			b.log.Debug("report not sent", "err", err)
		}
	}
}

// tellChanges reports to a new session what has changed since its hello.
func (b *Backend) tellChanges() {
	b.mu.Lock()
	greeted, unserved, renewed, several := b.greeted, b.unserved, b.renewed, b.renewed || b.renumbered
	b.mu.Unlock()

	if renewed {
		if err := b.link.Unserved(wire.Unserved{Models: unserved}); err != nil {
			b.log.Debug("the models that are not served were not announced", "err", err)
		}
	}

	for i := range b.modelEntries() {
		// Models added after the hello have numbers beyond it, or those of others that have left.
		d := b.describeModel(uint32(i))
		known := i < len(greeted) && greeted[i].Info.Name == d.Info.Name && greeted[i].Info.Version == d.Info.Version
		if !known || several || !slices.Equal(greeted[i].Profile, d.Profile) || greeted[i].Info.BatchMax != d.Info.BatchMax || greeted[i].Info.Accuracy != d.Info.Accuracy {
			b.tellLoadable(uint32(i))
		}

		for k, g := range b.gpus {
			said, r := known && greeted[i].Loaded[k], g.routeOf(uint32(i))
			switch c := (change{gpu: g, model: uint32(i)}); { // with several hellos it is unknown which one the session opened with
			case r != nil && (!said || several):
				b.tellLoaded(c, r)
			case r == nil && (said || !known || several):
				b.tellState(c, wire.PlacementReport{State: wire.Unloaded})
			}
		}
	}
	b.tellPlan()
}

// tellPlan reports the latest plan to a new session, by the number of a report that repeats a known state. A single
// scheduler that was restarted continues its plans' numbers from there.
func (b *Backend) tellPlan() {
	last := b.lastPlan.Load()
	if last == 0 || len(b.modelEntries()) == 0 {
		return
	}
	r := wire.PlacementReport{Number: wire.NumberOrder(last, 0), State: wire.Unloaded}
	if b.gpus[0].routeOf(0) != nil {
		r.State = wire.Loaded
	}
	b.sendReport(r)
}

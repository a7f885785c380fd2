package backend

import (
	"slices"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// What the scheduler is told of models: the hello says what is loaded and what can be, then each change follows. A
// session opens with the hello of the start, so what has changed since is told again when one opens.

// Hello returns what the scheduler is told on connecting.
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

	// What has changed since the start is told by this hello, not as news behind it.
	if b.renewed {
		h.Failed = withoutModels(b.unserved, h.Models)
	}
	b.greeted = h.Models
	return h
}

// detail is what plans need to know of the GPU. The first of its executors says it, which takes all models that it can: one
// on the processor is of this host's kind, whatever emulates models beside it.
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

// withoutModels leaves out of failed what is among the models that a hello describes: it names each once.
func withoutModels(failed []model.Info, models []wire.BackendModel) (all []model.Info) {
	for _, f := range failed {
		if !slices.ContainsFunc(models, func(m wire.BackendModel) bool { return m.Info.Name == f.Name && m.Info.Version == f.Version }) {
			all = append(all, f)
		}
	}
	return all
}

// describeModel returns a model as the scheduler knows it.
func (b *Backend) describeModel(model uint32) wire.BackendModel {
	m := b.modelEntries()[model].model
	d := wire.BackendModel{Info: m.Info(), Loaded: make([]bool, len(b.gpus))}
	if m.Profile != nil && m.Profile.Max() >= m.BatchMax {
		d.Profile = m.Profile.Table(m.BatchMax)
	}

	// Footprints may differ by GPU: the largest is planned with.
	for i, g := range b.gpus {
		if r := g.routeOf(model); r != nil {
			d.Loaded[i] = true
			d.Info.Shared = max(d.Info.Shared, uint64(r.footprint.Shared))
			d.Info.Static, d.Info.Dynamic = max(d.Info.Static, uint64(r.footprint.Static)), max(d.Info.Dynamic, uint64(r.footprint.Dynamic))
		}
	}
	return d
}

// tellLoadable tells of a model that is new, or has another profile or other shapes.
func (b *Backend) tellLoadable(model uint32) {
	d := b.describeModel(model)
	b.limitLabels([]wire.BackendModel{d})

	// Before the link is attached nobody needs to be told: the hello will say it.
	if l := b.linkNow(); l != nil {
		if err := l.Offer([]wire.Loadable{{Number: model, Model: d}}); err != nil {
			b.log.Debug("loadable model not sent", "err", err)
		}
	}
}

// tellLoaded tells that a GPU takes batches of a model, and what loading it took there.
func (b *Backend) tellLoaded(c change, r *route, load, warmUp time.Duration) {
	b.tellState(c, wire.PlacementReport{State: wire.Loaded, Load: int64(load), WarmUp: int64(warmUp),
		Static: uint64(r.footprint.Static), Dynamic: uint64(r.footprint.Dynamic)})

	// What it shares is not part of a report, and not known before it is loaded.
	if r.footprint.Shared > 0 {
		b.tellLoadable(c.model)
	}
}

// tellFailed tells that a placement failed, and returns why.
func (b *Backend) tellFailed(c change, why error) error {
	text := why.Error()
	b.tellState(c, wire.PlacementReport{State: wire.LoadFailed, Text: text[:min(len(text), wire.TextBytesMax)]})
	return why
}

// tellState sends a report about one model on one GPU.
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

// tellChanges tells a session that has just opened what is otherwise than its hello said.
func (b *Backend) tellChanges() {
	b.mu.Lock()
	greeted, unserved, renewed := b.greeted, b.unserved, b.renewed
	b.mu.Unlock()

	if renewed {
		if err := b.link.Unserved(wire.Unserved{Models: unserved}); err != nil {
			b.log.Debug("models that are not served not told", "err", err)
		}
	}

	for i := range b.modelEntries() {
		// Models that came after the hello have numbers beyond it.
		known := i < len(greeted)
		if d := b.describeModel(uint32(i)); !known || renewed || !slices.Equal(greeted[i].Profile, d.Profile) || greeted[i].Info.BatchMax != d.Info.BatchMax || greeted[i].Info.Accuracy != d.Info.Accuracy {
			b.tellLoadable(uint32(i))
		}

		for k, g := range b.gpus {
			said, r := known && greeted[i].Loaded[k], g.routeOf(uint32(i))
			switch c := (change{gpu: g, model: uint32(i)}); { // with several hellos it is not known which one the session opened with
			case r != nil && (!said || renewed):
				b.tellLoaded(c, r, r.loadTime, r.warmTime)
			case r == nil && (said || renewed):
				b.tellState(c, wire.PlacementReport{State: wire.Unloaded})
			}
		}
	}
	b.tellPlan()
}

// tellPlan tells a session that has just opened which plan was the latest: a scheduler that is alone and was started again
// numbers its plans from there on. It is the number of a report that says what is so anyway.
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

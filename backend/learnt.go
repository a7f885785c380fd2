package backend

import (
	"context"
	"fmt"
	"strconv"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/model"
)

// learnt is a version of a model that its learner has made, and its file.
type learnt struct {
	name, version string
	file          []byte
}

// LoadLearnt is LoadModel for a version that a learner has just stored, with the contents of its file. Where the version
// before is loaded the new one is made from it: it has the same profile, a GPU runs no batch to prepare it, and its
// weights are those in file, which the repository is not asked for.
func (b *Backend) LoadLearnt(ctx context.Context, name, version string, file []byte) error {
	if b.config.Find == nil {
		return fmt.Errorf("load model %s: this backend has no repository", name)
	}

	if err := b.beginPlacing(ctx); err != nil {
		return fmt.Errorf("load model %s: %w", name, err)
	}
	defer b.endPlacing()
	b.learnt = learnt{name, version, file}
	defer func() { b.learnt = learnt{} }()
	return b.loadNewest(ctx, name, "")
}

// handFile gives the version that is being published its file. The returned function takes it away: later loads read the
// repository.
func (b *Backend) handFile(models []*device.Model) (after func()) {
	set := func(file []byte) {
		for _, m := range models {
			if whole, _ := model.SplitVersion(m.Version); m.Name == b.learnt.name && whole == b.learnt.version {
				m.Source.File = file
			}
		}
	}
	set(b.learnt.file)
	return func() { set(nil) }
}

// predecessorOf returns the number of the version that m, a learnt one, follows: the latest that is loaded on every GPU. Of
// an earlier one the graph may be another, and its profile. false if m is none, or no version is on every GPU.
func (b *Backend) predecessorOf(m *device.Model) (number uint32, ok bool) {
	if b.learnt.name != m.Name {
		return 0, false
	}

	latest := 0
	for i, e := range b.modelEntries() {
		same := e.model.Name == m.Name && e.model != m && e.measured && e.model.Profile != nil && e.model.BatchMax == m.BatchMax
		version, err := strconv.Atoi(e.model.Version)
		if err == nil && version > latest && same && e.model.Source.SameTensors(m.Source) && b.loadedEverywhere(uint32(i)) {
			number, latest = uint32(i), version
		}
	}
	return number, latest > 0
}

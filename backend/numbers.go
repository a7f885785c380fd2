package backend

import (
	"slices"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// A model's number names it in messages of the scheduler. The number of a version that has left the repository names
// another one later, as a learner makes versions without end. No message may be on its way then in which it has the former
// meaning, and no scheduler may take over that believes in it (docs/decisions/0404).

const (
	numberRest  = time.Minute // how long a number rests, as ids do at the scheduler
	retireBatch = 64          // numbers that are announced together, since standbys' sessions are opened again for it
)

// retired is the number of a model that is loaded nowhere and has left the repository.
type retired struct {
	number uint32
	told   time.Duration // since when no hello has it loaded; 0: it was not announced
}

// numberOf returns the number of a model by name and version. A new model gets a new number, or one that has rested.
func (b *Backend) numberOf(m *device.Model) uint32 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if number, known := findNumber(b.models, m.Name, m.Version); known {
		b.retired = slices.DeleteFunc(b.retired, func(x retired) bool { return x.number == number }) // it is back
		return number
	}

	if b.hasRested() {
		number := b.retired[0].number
		b.retired = b.retired[1:]
		b.models = slices.Clone(b.models) // readers keep the old list
		b.models[number] = entry{model: m}
		return number
	}

	b.models = append(b.models, entry{model: m})
	return uint32(len(b.models) - 1)
}

// knowsVersion reports whether a version of a model has a number.
func (b *Backend) knowsVersion(name, version string) bool {
	_, known := findNumber(b.modelEntries(), name, version)
	return known
}

// findNumber returns the number that a version of a model has in a list.
func findNumber(list []entry, name, version string) (number uint32, known bool) {
	at := slices.IndexFunc(list, func(e entry) bool { return e.model.Name == name && e.model.Version == version })
	return uint32(max(at, 0)), at >= 0
}

// hasRested reports whether the first of the retired numbers may name another model. b.mu is held.
func (b *Backend) hasRested() bool {
	// A placement may have loaded a version that came back to the repository.
	b.retired = slices.DeleteFunc(b.retired, func(x retired) bool { return b.loadedSomewhere(x.number) })
	return len(b.retired) > 0 && b.retired[0].told > 0 && b.now()-b.retired[0].told >= b.numberRest
}

// hasNumber reports whether there is a number for a new model.
func (b *Backend) hasNumber() bool {
	b.mu.Lock()
	has := len(b.models) < wire.ModelsMax || b.hasRested()
	b.mu.Unlock()
	if !has {
		b.announceRetired()
	}
	return has
}

// retireVersions retires the numbers of the versions of a model that are loaded nowhere and that the repository does not
// have; named are those that it has.
func (b *Backend) retireVersions(name string, named []*device.Model) {
	b.mu.Lock()
	waiting, already := 0, map[uint32]bool{}
	for _, x := range b.retired {
		already[x.number] = true
		if x.told == 0 {
			waiting++
		}
	}

	for i, e := range b.models {
		whole, _ := model.SplitVersion(e.model.Version)
		has := func(m *device.Model) bool { return m.Version == e.model.Version || m.Version == whole }
		if e.model.Name == name && !already[uint32(i)] && !slices.ContainsFunc(named, has) && !b.loadedSomewhere(uint32(i)) {
			b.retired = append(b.retired, retired{number: uint32(i)})
			waiting++
		}
	}
	b.mu.Unlock()

	if waiting >= retireBatch {
		b.announceRetired()
	}
}

// announceRetired renews the hello, so that every session that is obeyed from now on knows that the retired models are
// loaded nowhere. Then their numbers rest.
func (b *Backend) announceRetired() {
	l := b.linkNow()
	if l == nil {
		return
	}

	b.mu.Lock()
	b.renumbered = true
	announced := len(b.retired)
	b.mu.Unlock()
	if err := l.Renumber(b.Hello()); err != nil {
		b.log.Debug("numbers of models are not announced as free", "err", err)
		return
	}

	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.retired[:min(announced, len(b.retired))] {
		if x := &b.retired[i]; x.told == 0 {
			x.told = b.now()
		}
	}
}

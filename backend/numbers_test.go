package backend

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/wire"
)

// publisher gives the rig's model versions as a learner does, from 2 on.
type publisher struct {
	*rig
	shelf *shelf
	last  int
}

func newPublisher(t *testing.T) *publisher {
	p := &publisher{rig: newRig(t, rigOptions{gpus: 2, alpha: 100 * time.Microsecond, batchMax: 2}), shelf: &shelf{models: map[string]*device.Model{}}, last: 1}
	p.config.Find = p.shelf.find
	return p
}

func (p *publisher) publish() error {
	p.last++
	next, source := *p.model, *p.model.Source
	next.Version, source.Version, next.Source = strconv.Itoa(p.last), strconv.Itoa(p.last), &source
	p.shelf.mu.Lock()
	p.shelf.models["m"] = &next
	p.shelf.mu.Unlock()
	return p.LoadLearnt(p.t.Context(), "m", next.Version, []byte("weights"))
}

func (p *publisher) mustPublish() {
	p.t.Helper()
	if err := p.publish(); err != nil {
		p.t.Fatalf("version %d: %v", p.last, err)
	}
}

// number returns the number of the version that serves.
func (p *publisher) number() uint32 {
	for i, e := range p.modelEntries() {
		if e.model.Version == strconv.Itoa(p.last) {
			return uint32(i)
		}
	}
	p.t.Fatalf("version %d has no number", p.last)
	return 0
}

// TestPublicationsHaveNoEnd publishes more versions than a backend can know. It knows few of them at a time, the last one
// serves, and both the hello and the messages to a session that began with the first hello name it.
func TestPublicationsHaveNoEnd(t *testing.T) {
	p := newPublisher(t)
	p.numberRest = time.Nanosecond
	for range wire.ModelsMax + 100 {
		p.mustPublish()
	}
	if n := len(p.modelEntries()); n > 2*retireBatch+2 {
		t.Errorf("%d models are known after %d publications, want few", n, p.last-1)
	}
	if n := p.sched.renumbered.Load(); n < wire.ModelsMax/retireBatch || n > 2*wire.ModelsMax/retireBatch {
		t.Errorf("%d announcements, want one for %d versions", n, retireBatch)
	}

	n := p.number()
	e, inputs := p.batch(1, 1)
	e.Model = n
	p.Execute([]wire.Execute{e})
	for id, in := range inputs {
		p.checkOutput(id, in)
	}
	if m := p.Hello().Models[n]; m.Info.Version != strconv.Itoa(p.last) || !m.Loaded[0] || !m.Loaded[1] {
		t.Errorf("the hello has %+v by the number of version %d", m, p.last)
	}

	// A session may have begun with any hello: what changed is repeated.
	p.sched.mu.Lock()
	p.sched.offers, p.sched.reports = nil, nil
	p.sched.mu.Unlock()
	p.Link(false, nil)
	p.Link(true, nil)
	told := ""
	for _, o := range p.sched.offers {
		if o.Number == n {
			told = o.Model.Info.Version
		}
	}
	if got := fmt.Sprint(told, p.states(n)); got != fmt.Sprint(p.last, "[loaded]") {
		t.Errorf("a later session hears %q of number %d", got, n)
	}
}

// TestANumberRests: a number names another model only when no hello has the former one loaded for as long as messages are on
// their way. Until then new versions take new numbers, up to the limit.
func TestANumberRests(t *testing.T) {
	p := newPublisher(t)
	for range retireBatch + 10 {
		p.mustPublish()
	}
	if n := p.number(); n != retireBatch+10 {
		t.Errorf("version %d has number %d before any number has rested", p.last, n)
	}

	// The announced ones rest, and the others are not announced.
	p.mu.Lock()
	announced := 0
	for i := range p.retired {
		if x := &p.retired[i]; x.told != 0 {
			announced++
			x.told = max(1, x.told-numberRest)
		}
	}
	p.epoch = p.epoch.Add(-numberRest)
	p.mu.Unlock()
	p.mustPublish()
	if n := p.number(); announced != retireBatch || n != 0 {
		t.Errorf("%d numbers are announced; version %d has number %d, want that of the first version", announced, p.last, n)
	}

	// A version that is back in the repository has its number again, and nothing else takes it.
	p.shelf.models["m"].Version = "60"
	if err := p.LoadModel(t.Context(), "m", ""); err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, x := range p.retired {
		if p.models[x.number].model.Version == "60" {
			t.Errorf("number %d of a loaded version is free", x.number)
		}
	}
}

// TestNoNumberIsLeft fills the table before any number has rested: the error says so, and after the rest versions are
// published again.
func TestNoNumberIsLeft(t *testing.T) {
	p := newPublisher(t)
	p.mustPublish()
	p.mu.Lock()
	for i := range wire.ModelsMax - len(p.models) {
		other := *p.model
		other.Name = fmt.Sprint("other", i)
		p.models = append(p.models, entry{model: &other})
	}
	p.mu.Unlock()
	if err := p.publish(); err == nil {
		t.Fatal("the backend knows more models than it may")
	}
	p.numberRest = time.Nanosecond
	p.mustPublish()
}

// TestAPlacementOfAFormerModel: a placement that waited while its number came to name another model changes nothing.
func TestAPlacementOfAFormerModel(t *testing.T) {
	p := newPublisher(t)
	former := p.modelEntries()[0].model
	p.numberRest = time.Nanosecond
	for p.modelEntries()[0].model.Version == former.Version {
		p.mustPublish()
	}
	if n := p.number(); n != 0 {
		t.Fatalf("version %d has number %d, want 0", p.last, n)
	}

	p.placeOne(t.Context(), namedPlacement{wire.Placement{Number: 7, Op: wire.Unload}, former})
	if !p.loadedEverywhere(0) {
		t.Error("an order to unload the former model of a number unloaded the present one")
	}
	p.sched.mu.Lock()
	defer p.sched.mu.Unlock()
	if r := p.sched.reports[len(p.sched.reports)-1]; r.Number != 7 || r.State != wire.LoadFailed {
		t.Errorf("the report is %+v", r)
	}
}

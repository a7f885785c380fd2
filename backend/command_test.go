package backend

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/device/devicetest"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/rdma"
)

// TestCommandBeforeAttachIsAnswered: when the session is open a command may come before the caller of DialBackend has
// attached the link. Its answer waits for that.
func TestCommandBeforeAttachIsAnswered(t *testing.T) {
	node, err := rdma.Open(rdma.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	b, err := New(Config{Name: "test", Models: []*device.Model{devicetest.Emulated(t, "m", 1, time.Millisecond, 0, []model.Tensor{tensor("in", "UINT8", 1)}, []model.Tensor{tensor("out", "UINT8", 1)})}, Node: node, GPUs: []GPU{{Name: "emulated", Executors: []device.Executor{mustEmu(t)}, Core: -1}}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()

	events{b}.Command([]wire.ModelCommand{{Number: 7, Op: wire.LoadModel, Model: "m"}})
	time.Sleep(10 * time.Millisecond) // as long as a link's caller may take; an answer without a link would be lost by now
	scheduler := &schedule{t: t, dones: map[uint64]wire.Done{}, at: map[uint64]time.Time{}}
	b.attach(scheduler)

	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		scheduler.mu.Lock()
		answers := scheduler.answers
		scheduler.mu.Unlock()
		if len(answers) == 1 && answers[0].Number == 7 && answers[0].Code == wire.CommandRefused {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("answers %+v, want one to command 7: refused", answers)
		}
	}
}

// TestMadeUpModelsTakeNoMemory shows that failures of loads are kept only for as many models as the index has room
// for.
func TestMadeUpModelsTakeNoMemory(t *testing.T) {
	r := &repository{reasons: map[versionKey]string{}}
	for i := range 2 * wire.ModelsMax {
		r.noteFailure(fmt.Sprint("m", i), "", errNotLoaded)
	}
	if len(r.reasons) != wire.ModelsMax {
		t.Errorf("%d failures are kept, want %d", len(r.reasons), wire.ModelsMax)
	}

	// A freed place is used again, and a known failure is renewed.
	r.forget("m7")
	r.noteFailure("late", "", errNotLoaded)
	r.noteFailure("m8", "", errOrders)
	if r.reasons[versionKey{"late", ""}] == "" || r.reasons[versionKey{"m8", ""}] != errOrders.Error() {
		t.Error("a failure was not noted though there was room")
	}
}

// taught is a learner that counts what it gets.
type taught struct{ lessons int }

func (l *taught) Teach(string, []byte) error { l.lessons++; return nil }
func (l *taught) RollBack(string) error      { return nil }

// TestLessonsAreBounded: a frontend that asks a backend to read more samples than one message may have is refused before any
// memory is taken.
func TestLessonsAreBounded(t *testing.T) {
	r := newRig(t, rigOptions{alpha: time.Millisecond})
	l := &taught{}
	r.Learns("m", l)
	before := r.node.Stats().BytesLive
	c := wire.ModelCommand{Op: wire.TeachModel, Model: "m", Payload: model.Descriptor{Key: 1, Length: wire.LessonBytesMax + 1}}
	err := r.carryCommand(t.Context(), c, r.peers.findPeer(1))
	var no *refusal
	if !errors.As(err, &no) || l.lessons != 0 || r.node.Stats().BytesLive != before {
		t.Errorf("%v, %d lessons, %d bytes taken: want a refusal", err, l.lessons, r.node.Stats().BytesLive-before)
	}
}

// fussy is a learner that refuses its first lessons.
type fussy struct {
	taught
	refusals int
}

func (l *fussy) Teach(version string, packed []byte) error {
	if l.refusals > 0 {
		l.refusals--
		return errors.New("samples of another length")
	}
	return l.taught.Teach(version, packed)
}

// TestALessonIsTakenOnce: a client sends samples again in another form if one backend refused the first one. A backend that
// took them takes them once, and one that refused them takes the second form.
func TestALessonIsTakenOnce(t *testing.T) {
	r := newRig(t, rigOptions{alpha: time.Millisecond})
	in := r.front.offer([]byte("samples"))
	for refusals := range 2 {
		l := &fussy{refusals: refusals}
		r.Learns("m", l)
		c := wire.ModelCommand{Op: wire.TeachModel, Model: "m", Shape: fmt.Sprint("lesson", refusals), Payload: in}
		first := r.carryCommand(t.Context(), c, r.peers.findPeer(1))
		again := r.carryCommand(t.Context(), c, r.peers.findPeer(1))
		if (first != nil) != (refusals > 0) || again != nil || l.lessons != 1 {
			t.Errorf("%d refusals: %v, then %v; taught %d times, want once", refusals, first, again, l.lessons)
		}

		// Samples without a name come from earlier clients, and all are new.
		c.Shape = ""
		for range 2 {
			if err := r.carryCommand(t.Context(), c, r.peers.findPeer(1)); err != nil {
				t.Error(err)
			}
		}
		if l.lessons != 3 {
			t.Errorf("taught %d times, want 3", l.lessons)
		}
	}

	for i := range 2 * lessonsKept {
		r.noteLesson(wire.ModelCommand{Model: "m", Shape: fmt.Sprint(i)})
	}
	if n := len(r.taught); n != lessonsKept {
		t.Errorf("%d names are kept, want %d", n, lessonsKept)
	}
}

// TestOneFrontendLeavesRoomForCommands: the files of a frontend that is not connected come from nowhere, so its commands take
// long. Another frontend's command is carried out meanwhile.
func TestOneFrontendLeavesRoomForCommands(t *testing.T) {
	r := newRig(t, rigOptions{alpha: time.Millisecond})
	r.config.repository = &repository{control: ControlExplicit, options: &Options{}}
	r.Peers([]wire.Peer{{Frontend: 2, DataAddr: "127.0.0.1:1"}})
	for n := range uint64(2 * commandsMax) {
		r.Command([]wire.ModelCommand{{Number: 1 + n, Op: wire.LoadModel, Frontend: 2, Model: "m", Payload: model.Descriptor{Key: 1, Length: 1}}})
	}

	r.Learns("m", &taught{})
	r.Command([]wire.ModelCommand{{Number: 1000, Op: wire.RollBackModel, Frontend: 1, Model: "m"}})
	answered := func(number uint64) (code wire.AnswerCode, came bool) {
		r.sched.mu.Lock()
		defer r.sched.mu.Unlock()
		for _, a := range r.sched.answers {
			if a.Number == number {
				return a.Code, true
			}
		}
		return 0, false
	}
	if !until(func() bool { _, came := answered(1000); return came }) {
		t.Fatal("no answer to the other frontend")
	}
	if code, _ := answered(1000); code != wire.CommandDone {
		t.Errorf("the other frontend's command: answer %d", code)
	}
	if code, came := answered(2 * commandsMax); !came || code != wire.CommandRefused {
		t.Errorf("the last of %d commands of one frontend: answer %d (came: %v), want a refusal", 2*commandsMax, code, came)
	}
}

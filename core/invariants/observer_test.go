package invariants

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// TestObjections breaks each rule alone. The observer must object to it, and to nothing else.
func TestObjections(t *testing.T) {
	good := Batch{ID: 7, Size: 2, Most: 4, Arrives: 10, Start: 20, Latest: 30, Finish: 50}
	with := func(set func(*Batch)) Batch { b := good; set(&b); return b }

	for _, tc := range []struct {
		want string
		do   func(o *Observer)
	}{
		{"", func(o *Observer) { o.Send(&GPU{Free: 20}, good) }},
		{"", func(o *Observer) { o.Keeps(&good, 1, 2, 50) }},
		{"C3: batch 7 is to start at 20 on a GPU that is busy until 21", func(o *Observer) { o.Send(&GPU{Free: 21}, good) }},
		{"C3: a GPU holds 4", func(o *Observer) { o.Send(&GPU{Ahead: make([]Batch, AheadMost)}, good) }},
		{"C4: batch 7 is to start at 9", func(o *Observer) { o.Send(&GPU{}, with(func(b *Batch) { b.Start = 9 })) }},
		{"C4: batch 7 is to start at 31", func(o *Observer) { o.Send(&GPU{}, with(func(b *Batch) { b.Start = 31 })) }},
		{"C4: batch 7 ends at 50, after the deadline 49 of request 2", func(o *Observer) { o.Keeps(&good, 1, 2, 49) }},
		{"C5: batch 7 of 0", func(o *Observer) { o.Send(&GPU{}, with(func(b *Batch) { b.Size = 0 })) }},
		{"C5: batch 7 of 5", func(o *Observer) { o.Send(&GPU{}, with(func(b *Batch) { b.Size = 5 })) }},

		{"", func(o *Observer) { o.Reaches(7, 0.9, 1, 2, 0.9) }},
		{"V1: batch 7 has an accuracy of 0.89, the floor of request 2 of source 1 is 0.9", func(o *Observer) { o.Reaches(7, 0.89, 1, 2, 0.9) }},

		{"", func(o *Observer) { o.Overdue(&Life{Queued: 1, Deadline: 5}, 1, 2, 5) }},
		{"", func(o *Observer) { o.Overdue(&Life{Maybe: 1, Deadline: 5}, 1, 2, 6) }},
		{"C2: request 2 of source 1", func(o *Observer) { o.Overdue(&Life{Queued: 1, Deadline: 5}, 1, 2, 6) }},
		{"", func(o *Observer) {
			l := Life{}
			l.Queue(5)
			l.Suspect(4)
			o.End(&l, 1, 2, "ended")
			o.End(&l, 1, 2, "ended")
		}},

		// A copy came late, so that its deadline is later. One of the two ended, and the scheduler has a further Submit.
		{"", func(o *Observer) { o.Overdue(endsAndComesAgain(o, 5, 9), 1, 2, 9) }},
		{"C2: request 2 of source 1 is queued at 10, after its deadline 9", func(o *Observer) { o.Overdue(endsAndComesAgain(o, 5, 9), 1, 2, 10) }},
		{"", func(o *Observer) { o.Overdue(endsAndComesAgain(o, 9, 5), 1, 2, 9) }},

		// A copy that may be queued does not excuse the one that is, nor does one that has ended.
		{"C2: request 2 of source 1 is queued at 6, after its deadline 5", func(o *Observer) {
			l := Life{}
			l.Queue(5)
			l.Suspect(9)
			o.Overdue(&l, 1, 2, 6)
		}},
		{"C2: request 2 of source 1 is queued at 6, after its deadline 5", func(o *Observer) {
			l := endsAndComesAgain(o, 5, 9)
			o.End(l, 1, 2, "ended")
			o.End(l, 1, 2, "ended")
			l.Queue(5)
			o.Overdue(l, 1, 2, 6)
		}},
		{"C1: request 2 of source 1 ended, but is not queued", func(o *Observer) {
			l := Life{}
			l.Queue(5)
			o.End(&l, 1, 2, "ended")
			o.End(&l, 1, 2, "ended")
		}},
	} {
		var got []string
		tc.do(&Observer{Object: func(format string, a ...any) { got = append(got, fmt.Sprintf(format, a...)) }})
		switch {
		case tc.want == "" && len(got) > 0, tc.want != "" && len(got) != 1:
			t.Errorf("want %q, got %q", tc.want, got)
		case tc.want != "" && !strings.HasPrefix(got[0], tc.want):
			t.Errorf("want %q, got %q", tc.want, got[0])
		}
	}
}

// endsAndComesAgain returns a request that was queued, and perhaps a copy of it. One of them ended, and the request was
// submitted again, until 5.
func endsAndComesAgain(o *Observer, deadline, ofCopy int64) *Life {
	l := &Life{}
	l.Queue(deadline)
	l.Suspect(ofCopy)
	o.End(l, 1, 2, "ended")
	l.Queue(5)
	return l
}

// TestCompleteMovesWhatIsBehind shows that the measured end replaces the planned one.
func TestCompleteMovesWhatIsBehind(t *testing.T) {
	g := GPU{Free: 60, Ahead: []Batch{{ID: 1, Start: 0, Finish: 20}, {ID: 2, Start: 20, Finish: 30}, {ID: 3, Start: 50, Finish: 60}}}
	if g.Complete(9, 1) || g.Free != 60 {
		t.Errorf("a batch that the GPU has not moved %+v", g)
	}
	if !g.Complete(1, 45) || g.Free != 65 || !reflect.DeepEqual(g.Ahead, []Batch{{ID: 2, Start: 20, Finish: 30}, {ID: 3, Start: 50, Finish: 60}}) {
		t.Errorf("45, then 10 from then and 10 behind: %+v", g)
	}
	if !g.Complete(3, 70) || g.Free != 70 || len(g.Ahead) != 0 {
		t.Errorf("the last one ends those before it: %+v", g)
	}
}

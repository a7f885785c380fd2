package frontend

import (
	"encoding/binary"
	"testing"
)

// TestLessonsAreGroupedByWhoAnswered: samples go to learners by the version that answered them. A class beyond 65,535 shares
// its bytes with the answer, so such a sample is sent without one: with it the learner would take another class for true.
func TestLessonsAreGroupedByWhoAnswered(t *testing.T) {
	lessons := []LabelledSample{{Class: 1, Answered: 2, Version: "7"}, {Class: 70_000, Answered: 3, Version: "7"}, {Class: 4},
		{Class: 5, Answered: 6, Version: "8"}, {Class: 9, Answered: 1<<16 - 1, Version: "7"}, {Class: 8, Answered: 0, Version: "7"}}
	got := map[string][]uint32{}
	order := ""
	for _, g := range groupLessons(lessons) {
		order += g.version + ";"
		for packed := g.pack(nil); len(packed) > 0; packed = packed[4:] {
			got[g.version] = append(got[g.version], binary.LittleEndian.Uint32(packed))
		}
	}

	want := map[string][]uint32{"7": {1 | 3<<16, 8 | 1<<16}, "": {70_000, 4, 9}, "8": {5 | 7<<16}}
	for version, classes := range want {
		if len(got[version]) != len(classes) {
			t.Fatalf("version %q: %v, want %v", version, got[version], classes)
		}
		for i := range classes {
			if got[version][i] != classes[i] {
				t.Errorf("version %q: sample %d: %#x, want %#x", version, i, got[version][i], classes[i])
			}
		}
	}
	if order != "7;;8;" {
		t.Errorf("order of versions: %q, want that of their first samples", order)
	}
}

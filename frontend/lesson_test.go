package frontend

import (
	"encoding/binary"
	"fmt"
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

// TestFormsOfALessonHaveOneName: samples that a backend refuses are sent in another form, by the same name, so that a backend
// which took the first form does not learn them twice. Other samples have another name.
func TestFormsOfALessonHaveOneName(t *testing.T) {
	g := groupLessons([]LabelledSample{{Input: make([]byte, 100), Class: 1, Answered: 2, Version: "7", Sure: 0.5}})[0]
	got := ""
	all := g.forms()
	for _, x := range all {
		got += fmt.Sprintf("%d%q ", x.head, x.version)
		if x.name == "" || x.name != all[0].name {
			t.Errorf("the form with version %q is named %q, and the first %q", x.version, x.name, all[0].name)
		}
	}
	if want := `6"7" 4"7" 4"" `; got != want {
		t.Errorf("forms %s, want %s", got, want)
	}
	if g.forms()[0].name == all[0].name {
		t.Error("two lessons have one name")
	}
}

package chart

import (
	"strings"
	"testing"
)

// TestPanelsWithoutWidth: a panel whose values are all alike, and one of a single point, are drawn. Grid lines of such a range used to
// have no end.
func TestPanelsWithoutWidth(t *testing.T) {
	flat := Panel{Title: "flat"}
	flat.Add("a", 1, 0)
	flat.Add("a", 2, 0)
	one := Panel{Title: "one", XMin: 3, YMin: 0.9}
	one.Add("a", 3, 0.5)

	var b strings.Builder
	if err := Draw(&b, []Panel{flat, one}); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(b.String(), "<text"); n < 10 || n > 100 {
		t.Errorf("%d texts, want the labels of two panels\n%s", n, b.String())
	}
}

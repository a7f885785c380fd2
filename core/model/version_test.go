package model

import "testing"

func TestVersionsAreOrderedAsNumbers(t *testing.T) {
	inOrder := []string{"alpha", "beta", "1", "2", "10", "18446744073709551615"}
	for i, a := range inOrder {
		for j, b := range inOrder {
			want := 0
			if i < j {
				want = -1
			} else if i > j {
				want = 1
			}
			if got := CompareVersions(a, b); got != want {
				t.Errorf("%q against %q: %d, want %d", a, b, got, want)
			}
		}
	}
}

//go:build linux

package chaos

import "testing"

// TestALogTellsWhoLeads: the last line that says so counts, whatever stands in it besides.
func TestALogTellsWhoLeads(t *testing.T) {
	const log = `level=INFO msg="this scheduler leads" room=core epoch=2
level=INFO msg="another scheduler leads" room=core
level=INFO msg="this scheduler leads" room=core epoch=12
`
	if e := lastEpoch(log); e != 12 {
		t.Errorf("epoch %d, want 12", e)
	}
	if e := lastEpoch(""); e != 0 {
		t.Errorf("epoch %d of an empty log, want 0", e)
	}
}

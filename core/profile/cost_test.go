package profile

import (
	"strings"
	"testing"

	"downbeat.dev/internal/memcost"
)

// FuzzReadCSVCost shows that no table of profiles takes more memory than its bytes allow.
func FuzzReadCSVCost(f *testing.F) {
	const head, fixed = "model,alpha_ms,beta_ms,slo_ms\n", 256 << 10
	f.Add(head + "a,1,2,20\n")
	f.Add(head + strings.Repeat("a,1,2,20\n", 1<<10))
	f.Add(head + strings.Repeat(",", 1<<12))
	f.Add(strings.Repeat("\n", 1<<12))
	f.Fuzz(func(t *testing.T, text string) {
		memcost.Check(t, []byte(text), fixed, func() { _, _ = ReadCSV(strings.NewReader(text)) })
	})
}

//go:build linux

package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Model is an emulated model of a trial.
type Model struct {
	Name     string
	Bytes    int           // of an input
	PerItem  time.Duration // ℓ(b) = PerItem·b + Fixed
	Fixed    time.Duration
	BatchMax int
	SLO      time.Duration
	Versions []int // empty: 1
}

// light is a model of which one GPU sustains some 430 requests per second with 100 ms: 16 in 37 ms.
func light(bytes int) Model {
	return Model{Name: fmt.Sprint("light", bytes), Bytes: bytes, PerItem: 2 * time.Millisecond, Fixed: 5 * time.Millisecond, BatchMax: 16, SLO: 100 * time.Millisecond}
}

const modelText = `name: %q
platform: "emulated"
max_batch_size: %d
input [ { name: "x" data_type: TYPE_UINT8 dims: [ %d ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 16 ] } ]
parameters { key: "alpha_ms" value { string_value: "%g" } }
parameters { key: "beta_ms" value { string_value: "%g" } }
parameters { key: "slo_ms" value { string_value: "%g" } }
`

// Repository writes a repository of models and returns its directory.
func (w *World) Repository(name string, models ...Model) string {
	dir := filepath.Join(w.dir, name)
	for _, m := range models {
		versions := m.Versions
		if len(versions) == 0 {
			versions = []int{1}
		}
		for _, v := range versions {
			check(os.MkdirAll(filepath.Join(dir, m.Name, fmt.Sprint(v)), 0o755))
		}

		text := fmt.Sprintf(modelText, m.Name, m.BatchMax, m.Bytes, toMilliseconds(m.PerItem), toMilliseconds(m.Fixed), toMilliseconds(m.SLO))
		check(os.WriteFile(filepath.Join(dir, m.Name, "config.pbtxt"), []byte(text), 0o644))
	}
	return dir
}

func toMilliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

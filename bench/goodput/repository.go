package goodput

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// liveInput is the size in bytes of a request for a written repository, to which its descriptor points. It is small
// because load generator, parts and emulated GPUs share a host's cores, which should work on requests, not copies.
const liveInput = 1000

// WriteRepository writes the models of a setting as a repository of emulated models, each with its profile and SLO,
// so that processes can be measured in the same setting as virtual time.
func (s *Setting) WriteRepository(dir string) error {
	for _, e := range s.Models {
		p, err := e.Profile()
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Join(dir, e.Name, "1"), 0o755); err != nil {
			return err
		}

		text := fmt.Sprintf(`platform: "emulated" max_batch_size: %d
input [ { name: "x" data_type: TYPE_UINT8 dims: [ %d ] } ] output [ { name: "y" data_type: TYPE_UINT8 dims: [ 1 ] } ]
parameters { key: "alpha_ms" value { string_value: "%g" } } parameters { key: "beta_ms" value { string_value: "%g" } }
parameters { key: "slo_ms" value { string_value: "%g" } }
`, p.Max(), liveInput, inMillis(e.Alpha), inMillis(e.Beta), inMillis(e.SLO))
		if err := os.WriteFile(filepath.Join(dir, e.Name, "config.pbtxt"), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func inMillis(d time.Duration) float64 { return float64(d) / 1e6 }

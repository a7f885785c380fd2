package models

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"downbeat.dev/core/repo"
	"downbeat.dev/models/scene"
)

// Render writes n held-out pictures per family into dir, at the models' sizes, and returns their paths. The names say
// what the pictures show: street-0.png, vehicle-0-car.png.
func Render(ctx context.Context, dir string, seed uint64, n int, c *scene.Conditions) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}

	var paths []string
	paint := NewPainter()
	for _, r := range Recipes() {
		// All variants of a family take the same images.
		if r.Variant != "s" {
			continue
		}

		h, w := r.Size()
		m := scene.NewImage(w, h)
		for i := range n {
			if ctx.Err() != nil {
				return paths, ctx.Err()
			}

			t, err := r.Draw(paint, seed, uint64(i), c, m.Pix)
			if err != nil {
				return nil, err
			}

			name := fmt.Sprintf("street-%d.png", i)
			if r.Family != "detector" {
				name = fmt.Sprintf("%s-%d-%s.png", r.Family, i, r.Labels()[t.Class])
			}

			var b bytes.Buffer
			if err := m.WritePNG(&b); err != nil {
				return nil, err
			}

			path := filepath.Join(dir, name)
			if err := repo.WriteFile(path, b.Bytes()); err != nil {
				return nil, err
			}
			paths = append(paths, path)
		}
	}
	return paths, nil
}

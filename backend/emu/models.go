package emu

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/repo"
)

// ReadModels returns the models that config.pbtxt texts describe, by name. It reads them as a repository does, so that
// they are checked as a deployment's are. Profiles are those of the configurations: nothing is measured, so every host
// plans alike. slotBytes is the limit of a slot, as in device.NewModel.
func ReadModels(texts map[string]string, slotBytes int) (all []*device.Model, err error) {
	dir, err := WriteRepository(texts)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	r, err := repo.Open(dir)
	if err != nil {
		return nil, err
	}

	// A repository leaves out models that it cannot read. The caller would wait for such a model in vain.
	if len(r.Errors) > 0 {
		return nil, fmt.Errorf("models: %v", r.Errors)
	}

	for i := range r.Models {
		m, err := device.NewModel(&r.Models[i], 0, slotBytes)
		if err != nil {
			return nil, err
		}
		if m.Profile, err = Profile(&r.Models[i]); err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

// WriteRepository writes config.pbtxt texts, by model name, as a model repository. The caller removes the directory.
func WriteRepository(texts map[string]string) (dir string, err error) {
	if dir, err = os.MkdirTemp("", "downbeat-models-"); err != nil {
		return "", err
	}

	for name, text := range texts {
		err = errors.Join(os.Mkdir(filepath.Join(dir, name), 0o755), os.WriteFile(filepath.Join(dir, name, "config.pbtxt"), []byte(text), 0o644))
		if err != nil {
			return "", errors.Join(fmt.Errorf("model %q: %w", name, err), os.RemoveAll(dir))
		}
	}
	return dir, nil
}

package learn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"downbeat.dev/backend/onnx"
	"downbeat.dev/backend/train"
	"downbeat.dev/core/repo"
)

// Store keeps a model's learnt versions in its directory of the model repository, beside those that people put there. The
// newest one is what serves after a restart.
type Store struct {
	dir   string // the model's
	net   train.Net
	write func(path string, content []byte) error
}

const storedMost = versionsKept // learnt versions that stay on disk

// OpenStore opens a model's directory of a repository.
func OpenStore(repository string, net train.Net) *Store {
	return &Store{filepath.Join(repository, net.Name), net, repo.WriteFile}
}

// Newest returns the newest version and its weights.
func (s *Store) Newest() (version int, weights []float32, err error) {
	all, err := s.list()
	if err != nil {
		return 0, nil, err
	}
	if len(all) == 0 {
		return 0, nil, fmt.Errorf("model %s: %s has no version", s.net.Name, s.dir)
	}

	version = all[len(all)-1]
	weights, err = s.Weights(version)
	return version, weights, err
}

// Weights returns those of a version.
func (s *Store) Weights(version int) ([]float32, error) {
	m, err := onnx.Read(filepath.Join(s.dir, strconv.Itoa(version), "model.onnx"))
	if err != nil {
		return nil, err
	}
	return s.net.ReadWeights(m)
}

// list returns the numbers of the versions, ascending.
func (s *Store) list() (all []int, err error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("versions of %s: %w", s.net.Name, err)
	}

	// A name such as 01 is no version: versions are found by their numbers.
	for _, e := range entries {
		if v, err := strconv.Atoi(e.Name()); err == nil && v > 0 && strconv.Itoa(v) == e.Name() && e.IsDir() {
			all = append(all, v)
		}
	}
	slices.Sort(all)
	return all, nil
}

// Save writes a version that must not be there yet. Its directory appears whole: it is filled under a name that repositories
// do not read, then renamed. After an error the repository has what it had.
func (s *Store) Save(v Version) (err error) {
	version := v.Number
	all, err := s.list()
	if err != nil {
		return err
	}
	if len(all) == 0 || version <= all[len(all)-1] {
		return fmt.Errorf("save version %d of %s: there are %v: want a later one", version, s.net.Name, all)
	}

	// The content is made before the directory: an error here leaves nothing to clear away.
	m, err := s.net.Serving(v.Weights)
	if err != nil {
		return err
	}
	origin, err := json.Marshal(repo.Learned{From: all[len(all)-1], ExitGaps: v.ExitGaps})
	if err != nil {
		return err
	}

	temporary, err := os.MkdirTemp(s.dir, ".learned-*")
	if err != nil {
		return fmt.Errorf("save version %d of %s: %w", version, s.net.Name, err)
	}
	err = errors.Join(s.write(filepath.Join(temporary, "model.onnx"), m.Marshal()), s.write(filepath.Join(temporary, repo.LearnedFile), origin), os.Chmod(temporary, 0o755))

	// The rename is what makes the version visible.
	if err == nil {
		err = os.Rename(temporary, filepath.Join(s.dir, strconv.Itoa(version)))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("save version %d of %s: %w", version, s.net.Name, err), os.RemoveAll(temporary))
	}
	s.prune(append(all, version))
	return nil
}

// Publisher returns what Options.Publish wants of a backend that serves the repository: weights become a version, which
// load (a backend's LoadModel) puts in force on one GPU after another while the version before serves. A backend answers
// a request from one version and says which. The model's early exits follow it. A version that cannot be loaded, the model's
// or an exit's, is taken out again, and what has loaded it goes back.
func (s *Store) Publisher(load func(ctx context.Context, name, version string) error) func(Version) error {
	return func(v Version) error {
		exits, err := repo.ExitsOf(filepath.Dir(s.dir), s.net.Name)
		if err != nil {
			return err
		}
		if err := s.Save(v); err != nil {
			return err
		}

		ctx, cancel := context.WithTimeout(context.Background(), loadMost)
		defer cancel()
		names := append([]string{s.net.Name}, exits...)
		for i, name := range names {
			err := load(ctx, name, "")
			if err == nil {
				continue
			}

			// The newest version that is left is the one before.
			err = errors.Join(err, s.Remove(v.Number))
			for _, loaded := range names[:i] {
				err = errors.Join(err, load(ctx, loaded, ""))
			}
			return err
		}
		return nil
	}
}

// loadMost is how long a backend may take to put a version in force, exits and all.
const loadMost = time.Minute

// Remove takes a learnt version out of the repository: one that could not be put in force must not serve after a restart.
func (s *Store) Remove(version int) error {
	// The provenance file is the proof that no person put the version there.
	dir := filepath.Join(s.dir, strconv.Itoa(version))
	if _, err := os.Stat(filepath.Join(dir, repo.LearnedFile)); err != nil {
		return fmt.Errorf("remove version %d of %s: no learner wrote it: %w", version, s.net.Name, err)
	}
	return os.RemoveAll(dir)
}

// prune removes learnt versions that are too old to be put in force again. What people put there stays, and so does what
// cannot be removed: the next version tries again.
func (s *Store) prune(all []int) {
	var learnt []string
	for _, v := range all {
		dir := filepath.Join(s.dir, strconv.Itoa(v))
		if _, err := os.Stat(filepath.Join(dir, repo.LearnedFile)); err == nil {
			learnt = append(learnt, dir)
		}
	}
	for _, dir := range learnt[:max(0, len(learnt)-storedMost)] {
		os.RemoveAll(dir)
	}
}

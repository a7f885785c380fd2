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
	"strings"
	"time"

	"downbeat.dev/backend/onnx"
	"downbeat.dev/backend/train"
	"downbeat.dev/core/repo"
)

// Store keeps a model's learnt versions in the model's directory of the repository, beside the versions that people
// put there. The newest version serves after a restart.
type Store struct {
	dir   string // the model's directory
	net   train.Net
	write func(path string, content []byte) error
	erase func(path string) error // removes a directory

	patience time.Duration // for the loads of a publication, and for those of the version before after a failure
}

const storedMost = versionsKept // learnt versions that stay on disk

// OpenStore opens a model's directory of a repository.
func OpenStore(repository string, net train.Net) *Store {
	return &Store{dir: filepath.Join(repository, net.Name), net: net, write: repo.WriteFile, erase: os.RemoveAll, patience: loadMost}
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

// Weights returns the weights of a version.
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

	// A name such as 01 is no version: versions are looked up by number.
	for _, e := range entries {
		if v, err := strconv.Atoi(e.Name()); err == nil && v > 0 && strconv.Itoa(v) == e.Name() && e.IsDir() {
			all = append(all, v)
		}
	}
	slices.Sort(all)
	return all, nil
}

// Save writes a version that must not exist yet. It fills a directory under a name that repositories ignore and
// renames it, so that the version appears complete. After an error the repository is unchanged.
func (s *Store) Save(v Version) error {
	_, err := s.saveFile(v)
	return err
}

// saveFile is Save, and returns the contents of the version's file.
func (s *Store) saveFile(v Version) (file []byte, err error) {
	version := v.Number
	all, err := s.list()
	if err != nil {
		return nil, err
	}
	if len(all) == 0 || version <= all[len(all)-1] {
		return nil, fmt.Errorf("save version %d of %s: there are %v: want a later one", version, s.net.Name, all)
	}

	s.clearAbandoned()

	// Build the content before the directory: an error here leaves nothing to remove.
	m, err := s.net.Serving(v.Weights)
	if err != nil {
		return nil, err
	}
	file = m.Marshal()
	origin, err := json.Marshal(repo.Learned{From: all[len(all)-1], ExitGaps: v.ExitGaps})
	if err != nil {
		return nil, err
	}

	temporary, err := os.MkdirTemp(s.dir, abandoned+"*")
	if err != nil {
		return nil, fmt.Errorf("save version %d of %s: %w", version, s.net.Name, err)
	}
	err = errors.Join(s.write(filepath.Join(temporary, "model.onnx"), file), s.write(filepath.Join(temporary, repo.LearnedFile), origin), os.Chmod(temporary, 0o755))

	// The rename makes the version visible.
	if err == nil {
		err = os.Rename(temporary, filepath.Join(s.dir, strconv.Itoa(version)))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("save version %d of %s: %w", version, s.net.Name, err), os.RemoveAll(temporary))
	}
	s.prune(append(all, version))
	return file, nil
}

// Publisher returns an Options.Publish for a backend that serves the repository. It stores weights as a version,
// which load (a backend's LoadLearnt) loads on one GPU after another while the previous version serves; file has the
// contents of its file. A backend answers each request from one version and names it. The model's early exits follow. If
// the version, or an exit's, cannot be loaded, Publisher removes it and loads the previous version where the new one may
// have been loaded.
func (s *Store) Publisher(load func(ctx context.Context, name, version string, file []byte) error) func(Version) error {
	return func(v Version) error {
		exits, err := repo.ExitsOf(filepath.Dir(s.dir), s.net.Name)
		if err != nil {
			return err
		}
		file, err := s.saveFile(v)
		if err != nil {
			return err
		}

		ctx, cancel := context.WithTimeout(context.Background(), s.patience)
		defer cancel()
		names := append([]string{s.net.Name}, exits...)
		for i, name := range names {
			if err := load(ctx, name, strconv.Itoa(v.Number), file); err != nil {
				return errors.Join(err, s.withdrawVersion(v.Number, names[:i+1], load))
			}
		}
		return nil
	}
}

// withdrawVersion removes a version that is not published, and loads the version before it for these names.
func (s *Store) withdrawVersion(version int, names []string, load func(ctx context.Context, name, version string, file []byte) error) error {
	err := s.Remove(version)

	// The time for the publication may be over: that may be why it failed.
	ctx, cancel := context.WithTimeout(context.Background(), s.patience)
	defer cancel()

	// Also for the last name, whose load failed: its new version may serve, and only the old one not be unloaded.
	for _, name := range names {
		err = errors.Join(err, load(ctx, name, "", nil)) // the newest remaining version is the previous one
	}
	return err
}

// loadMost is the time limit for loading a version, including its exits.
const loadMost = time.Minute

// Remove removes a learnt version from the repository: a version that could not be loaded must not serve after a
// restart.
func (s *Store) Remove(version int) error {
	// The provenance file proves that no person put the version there.
	dir := filepath.Join(s.dir, strconv.Itoa(version))
	if _, err := os.Stat(filepath.Join(dir, repo.LearnedFile)); err != nil {
		return fmt.Errorf("remove version %d of %s: no learner wrote it: %w", version, s.net.Name, err)
	}
	return s.removeDir(dir)
}

// removeDir removes a version's directory. A directory under a version's name is always whole: a crash leaves one under a
// name that repositories ignore.
func (s *Store) removeDir(dir string) error {
	gone := filepath.Join(s.dir, abandoned+filepath.Base(dir))
	if err := errors.Join(s.erase(gone), os.Rename(dir, gone)); err != nil {
		return err
	}
	return s.erase(gone)
}

// abandoned begins the names of directories that are not versions yet, or no more.
const abandoned = ".learned-"

// clearAbandoned removes the directories that a learner left behind whose process ended meanwhile. Only one process learns a
// model, so nobody uses them.
func (s *Store) clearAbandoned() {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return // saving will say why
	}

	for _, e := range entries {
		if strings.HasPrefix(e.Name(), abandoned) {
			_ = s.erase(filepath.Join(s.dir, e.Name())) // or before the next version
		}
	}
}

// prune removes learnt versions that are too old for a rollback. It keeps versions that people put there. A version
// that cannot be removed stays until the next call.
func (s *Store) prune(all []int) {
	var learnt []string
	for _, v := range all {
		dir := filepath.Join(s.dir, strconv.Itoa(v))
		if _, err := os.Stat(filepath.Join(dir, repo.LearnedFile)); err == nil {
			learnt = append(learnt, dir)
		}
	}
	for _, dir := range learnt[:max(0, len(learnt)-storedMost)] {
		_ = s.removeDir(dir)
	}
}

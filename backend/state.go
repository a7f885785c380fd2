package backend

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"downbeat.dev/core/repo"
)

// With Options.State a backend records on disk which models commands have loaded and unloaded, so that a restarted
// backend serves the same models. For other models Options.Load holds.

const stateFile = "loaded.json"

// stateMost bounds the file: room for the configurations of thousands of models.
const stateMost = 64 << 20

// commanded is the state of the models that commands have named.
type commanded struct {
	dir    string // of this backend; empty: nothing is recorded
	models map[string]commandedModel
}

type commandedModel struct {
	Loaded bool   `json:"loaded"`
	Config string `json:"config,omitempty"` // replaces the model's own
	Files  string `json:"files,omitempty"`  // a directory beside the file that replaces the model's own files
}

// openCommanded reads the state of the backend of that name. It removes files that the state does not name, left by a
// process that ended early.
func openCommanded(dir, backend string) (*commanded, error) {
	s := &commanded{models: map[string]commandedModel{}}
	if dir == "" {
		return s, nil
	}

	// A directory per name, because backends of one host may share the parent. A name may contain slashes.
	s.dir = filepath.Join(dir, "backend-"+url.PathEscape(backend))
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	if err := s.read(); err != nil {
		return nil, fmt.Errorf("state: %s: %w; without the file the backend begins with load_models", filepath.Join(s.dir, stateFile), err)
	}
	return s, s.removeLeftovers()
}

// read reads the file, if there is one.
func (s *commanded) read() error {
	file, err := os.Open(filepath.Join(s.dir, stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()

	info, err := file.Stat()
	if err == nil && info.Size() > stateMost {
		err = fmt.Errorf("%d bytes, want at most %d", info.Size(), stateMost)
	}
	if err != nil {
		return err
	}

	// An unknown field belongs to a later version; the next write would lose it.
	d := json.NewDecoder(file)
	d.DisallowUnknownFields()
	if err := d.Decode(&s.models); err != nil {
		return err
	}
	if s.models == nil { // the file says null
		s.models = map[string]commandedModel{}
	}

	// A path that leads elsewhere would be removed with the model, and the file may have been edited.
	for name, m := range s.models {
		if m.Files != "" && (filepath.Base(m.Files) != m.Files || !strings.HasPrefix(m.Files, overridePrefix)) {
			return fmt.Errorf("model %.40q: files %.40q, want a directory %s…", name, m.Files, overridePrefix)
		}
	}
	return nil
}

// removeLeftovers removes files of commands that no model uses, and those of writes that did not end.
func (s *commanded) removeLeftovers() error {
	all, err := os.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}

	for _, e := range all {
		named := slices.ContainsFunc(slices.Collect(maps.Values(s.models)), func(m commandedModel) bool { return m.Files == e.Name() })
		unfinished := strings.HasPrefix(strings.TrimPrefix(e.Name(), "."), stateFile+".")
		if unfinished || strings.HasPrefix(e.Name(), overridePrefix) && !named {
			err = errors.Join(err, os.RemoveAll(filepath.Join(s.dir, e.Name())))
		}
	}
	return err
}

// noteCommand records the result of a command. It returns when that is on disk.
func (s *commanded) noteCommand(name string, loaded bool, o *override) error {
	if s.dir == "" {
		return nil
	}
	m := commandedModel{Loaded: loaded}
	if o != nil {
		m.Config = o.config
		if o.files != "" {
			m.Files = filepath.Base(o.files)
		}
	}

	// No change needs no write.
	if old, known := s.models[name]; known && old == m {
		return nil
	}
	s.models[name] = m
	return s.write()
}

// write replaces the file.
func (s *commanded) write() error {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetIndent("", "  ")
	if err := e.Encode(s.models); err != nil {
		return err
	}
	return repo.WriteFile(filepath.Join(s.dir, stateFile), text.Bytes())
}

// overrides returns the models whose files commands have replaced.
func (s *commanded) overrides() map[string]*override {
	all := map[string]*override{}
	for name, m := range s.models {
		if !m.Loaded || m.Config == "" {
			continue
		}
		o := &override{config: m.Config}
		if m.Files != "" {
			o.files = filepath.Join(s.dir, m.Files)
		}
		all[name] = o
	}
	return all
}

// atStart returns the models of the repository to load at start, and those to leave out even if load is "*".
// Overridden ones are loaded later.
func (s *commanded) atStart(load []string) (with, without []string) {
	with = slices.Clone(load)
	for _, name := range slices.Sorted(maps.Keys(s.models)) {
		if m := s.models[name]; m.Loaded && m.Config == "" {
			with = append(with, name)
		} else {
			without = append(without, name)
		}
	}
	slices.Sort(with)
	return slices.Compact(with), without
}

// reloadOverridden loads the models that commands of an earlier run loaded with their own files or configuration.
func (b *Backend) reloadOverridden(names []string) {
	defer b.wait.Done()
	ctx := b.peers.ctx
	for _, name := range names {
		if err := b.beginPlacing(ctx); err != nil {
			return // the backend is closing
		}
		err := b.loadNewest(ctx, name, "")
		b.tellUnserved()
		b.endPlacing()
		if err != nil {
			b.log.Error("model that a command had loaded is not loaded", "model", name, "err", err)
		}
	}
}

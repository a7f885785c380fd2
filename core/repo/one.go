package repo

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ErrNotFound is wrapped by OpenModel for a model that no repository has.
var ErrNotFound = errors.New("no such model")

// OpenModel reads one model, the versions that its policy serves, from the repositories in dirs. Others are not read.
func OpenModel(dirs []string, name string, o Options) ([]Model, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}

	// The same rule as for whole repositories: a model that is in two of them is served from neither.
	var found []string
	for _, dir := range dirs {
		if path := filepath.Join(dir, name); isModel(path) {
			found = append(found, path)
		}
	}

	switch len(found) {
	case 0:
		return nil, fmt.Errorf("model %q: %w in %s", name, ErrNotFound, strings.Join(dirs, ", "))
	case 1:
		return openModel(found[0], name, o)
	}
	return nil, fmt.Errorf("model %q: is in %s; want it in one repository", name, strings.Join(found, " and in "))
}

// Names returns the names of the models that the repositories in dirs have, good or bad, sorted. It reads no file.
func Names(dirs []string) ([]string, error) {
	var all []string
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, fmt.Errorf("open model repository: %w", err)
		}
		for _, e := range entries {
			if hasFile(filepath.Join(dir, e.Name()), applicationFile) {
				continue // it is no backend's
			}
			if !strings.HasPrefix(e.Name(), ".") && isModel(filepath.Join(dir, e.Name())) {
				all = append(all, e.Name())
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// isModel tells whether a directory is a model's: it has a configuration or a version, or is an application's.
func isModel(path string) bool {
	if !isDir(path) {
		return false
	}
	return hasFile(path, "config.pbtxt", applicationFile) || hasVersions(path)
}

// Stamp is a sum over the names, sizes and times of a model's files: it changes when a file does. Stored profiles, which
// a backend may write itself, do not count.
type Stamp uint64

// Scan returns the stamp of every model in the repositories in dirs. Of a model without versions of its own it reads the
// configuration: an exit changes with the model that it is an exit of.
func Scan(dirs []string) (map[string]Stamp, error) {
	names, err := Names(dirs)
	if err != nil {
		return nil, err
	}

	all := make(map[string]Stamp, len(names))
	for _, name := range names {
		var stamp Stamp
		// The sum over all repositories also changes when a model moves from one to another.
		for _, dir := range dirs {
			stamp += stampOf(filepath.Join(dir, name), "")
			if of := exitParent(filepath.Join(dir, name)); of != "" {
				stamp += stampOf(of, "")
			}
		}
		all[name] = stamp
	}
	return all, nil
}

// stampOf sums up the files below a model's directory; version leaves out the directories of other versions. A file
// that goes away meanwhile does not count.
func stampOf(dir, version string) Stamp {
	h := fnv.New64a()
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if e.IsDir() {
			// Versions do not touch each other: a new one must not look like a change of those that are
			// loaded.
			if version != "" && path != dir && filepath.Dir(path) == dir && e.Name() != version && isVersion(e.Name()) {
				return fs.SkipDir
			}
			return nil
		}

		// A link's own size never changes; what it leads to does.
		info, err := os.Stat(path) // what a link leads to
		if err == nil && e.Name() != profileFile {
			fmt.Fprintln(h, path, info.Size(), info.ModTime().UnixNano())
		}
		return nil
	})
	return Stamp(h.Sum64())
}

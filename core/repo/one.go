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

// ErrNotFound is wrapped by OpenModel if no repository has the model.
var ErrNotFound = errors.New("no such model")

// OpenModel reads only one model, with the versions that its policy serves, from the repositories in dirs.
func OpenModel(dirs []string, name string, o Options) ([]Model, error) {
	if err := checkName(name); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotFound, err) // no repository can have it
	}

	// As in OpenAll, a model in two repositories is not served.
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

// Names returns the sorted names of the models in the repositories in dirs, good and bad. It reads no file.
func Names(dirs []string) ([]string, error) {
	var all []string
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, fmt.Errorf("open model repository: %w", err)
		}

		for _, e := range entries {
			if hasFile(filepath.Join(dir, e.Name()), applicationFile) {
				continue // an application, which no backend serves
			}
			if !strings.HasPrefix(e.Name(), ".") && isModel(filepath.Join(dir, e.Name())) {
				all = append(all, listedName(e))
			}
		}
	}

	// A model in several repositories is listed once, although none of them serves it.
	slices.Sort(all)
	return slices.Compact(all), nil
}

// isModel reports whether a directory is a model's or an application's: it has a configuration, a version or an
// application.yaml.
func isModel(path string) bool {
	if !isDir(path) {
		return false
	}
	return hasFile(path, "config.pbtxt", applicationFile) || hasVersions(path)
}

// Stamp is a checksum of the names, sizes and times of a model's files: it changes when a file does. It excludes
// stored profiles, which a backend may write itself.
type Stamp uint64

// Scan returns the stamp of every model in the repositories in dirs. The stamp of a model without versions includes
// its parent's, which its configuration names: an exit changes with its parent.
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

// stampOf computes the stamp of a model's directory. Unless version is empty, it skips the directories of other
// versions. It ignores files that disappear meanwhile.
func stampOf(dir, version string) Stamp {
	h := fnv.New64a()
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if e.IsDir() {
			// A new version must not look like a change of the loaded versions.
			if version != "" && path != dir && filepath.Dir(path) == dir && e.Name() != version && isVersion(e.Name()) {
				return fs.SkipDir
			}
			return nil
		}

		// Follow links: a link's own size never changes, its target's may.
		info, err := os.Stat(path) // of a link's target
		if err == nil && e.Name() != profileFile {
			fmt.Fprintln(h, path, info.Size(), info.ModTime().UnixNano())
		}
		return nil
	})
	return Stamp(h.Sum64())
}

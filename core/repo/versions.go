package repo

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// openVersion reads one version of a model. of is the model whose file it runs.
func openVersion(dir, name string, version int64, c *Config, of parent) (Model, error) {
	m := Model{Name: name, Version: strconv.FormatInt(version, 10), Platform: c.Platform, SLO: c.SLO,
		BatchMax: max(c.BatchMax, 1), Batched: c.BatchMax > 0, BytesMax: c.BytesMax, Config: c, Accuracy: c.Accuracy, ExitStage: c.ExitStage}

	for _, t := range c.Inputs {
		m.Inputs = append(m.Inputs, t.Tensor)
	}
	for _, t := range c.Outputs {
		m.Outputs = append(m.Outputs, t.Tensor)
	}

	m.Stamp = stampOf(dir, m.Version)
	if d := filepath.Join(dir, m.Version); isDir(d) || c.ExitOf != "" { // an exit's directory is created for its profile
		m.VersionDir = d
	}

	// An exit changes with its parent's file; of a learnt version, its accuracy is not the configuration's.
	if c.ExitOf != "" {
		m.Stamp += stampOf(of.dir, m.Version)
		if err := m.readJudged(of); err != nil {
			return m, fmt.Errorf("version %s: %w", m.Version, err)
		}
	}
	if c.Platform == PlatformEmulated {
		return m, nil
	}

	m.ONNXPath = filepath.Join(of.dir, m.Version, of.config.ModelFile)
	info, err := os.Stat(m.ONNXPath)
	switch {
	case err != nil:
		return m, fmt.Errorf("version %s: %w", m.Version, err)
	case !info.Mode().IsRegular() || info.Size() == 0:
		return m, fmt.Errorf("version %s: %s: want a regular file that is not empty", m.Version, m.ONNXPath)
	}
	m.Profiles, err = readProfiles(filepath.Join(m.VersionDir, profileFile))
	return m, err
}

// chooseVersions returns the versions that the policy serves, oldest first.
func chooseVersions(dir string, c *Config) ([]int64, error) {
	all, err := listVersions(dir)
	if err != nil {
		return nil, err
	}

	// An emulated model has no file, so it needs no directory for a version.
	if len(all) == 0 && c.Platform == PlatformEmulated {
		all = []int64{1}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: has no version; want a directory named by a positive integer with %s in it", dir, c.ModelFile)
	}

	p := c.Versions
	switch {
	case p.All:
		return all, nil
	case len(p.Specific) > 0:
		for _, v := range p.Specific {
			if !slices.Contains(all, v) {
				return nil, fmt.Errorf("%s: version_policy.specific: version %d is not there; there are %v", dir, v, all)
			}
		}

		s := slices.Clone(p.Specific)
		slices.Sort(s)
		return slices.Compact(s), nil
	}
	return all[max(len(all)-max(p.Latest, 1), 0):], nil
}

func listVersions(dir string) ([]int64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}

	var all []int64
	for _, e := range entries {
		if v, err := strconv.ParseInt(e.Name(), 10, 64); err == nil && isVersion(e.Name()) && isDir(filepath.Join(dir, e.Name())) {
			all = append(all, v)
		}
	}
	slices.Sort(all)
	return all, nil
}

// hasFile reports whether one of the files may exist.
func hasFile(dir string, names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		_, err := os.Stat(filepath.Join(dir, name))
		return !errors.Is(err, fs.ErrNotExist)
	})
}

// isVersion reports whether a name is a version: a positive integer without leading zeros.
func isVersion(name string) bool {
	v, err := strconv.ParseInt(name, 10, 64)
	return err == nil && v > 0 && strconv.FormatInt(v, 10) == name
}

func hasVersions(dir string) bool {
	v, err := listVersions(dir)
	return err == nil && len(v) > 0
}

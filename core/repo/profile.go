package repo

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"downbeat.dev/core/profile"
)

const (
	profileFile     = "profile.json"
	profileBytesMax = 4 << 20
	hostsMax        = 256 // host kinds in one profile.json
	profileFormat   = 1
)

// Profile is ℓ(b) of one model version, measured on one kind of host.
type Profile struct {
	Host        string          `json:"host"`        // the host kind, which is the key, such as "cpu/Xeon-8375C/ort-1.27.0"
	Description string          `json:"description"` // for people: processor or GPU, threads, library versions
	TableNS     []time.Duration `json:"table_ns"`    // in ns; TableNS[b-1] = ℓ(b)
	AlphaNS     float64         `json:"alpha_ns"`    // fitted ns per request
	BetaNS      float64         `json:"beta_ns"`     // fitted ns per batch
	R2          float64         `json:"r2"`          // of the fit; 1 is perfect
	Repeats     int             `json:"repeats"`     // measurements per batch size
	Measured    string          `json:"measured"`    // RFC 3339

	// What plans ask before the model is loaded anywhere; 0: not measured.

	StaticBytes  int64         `json:"static_bytes,omitempty"`  // that the loaded model holds
	DynamicBytes int64         `json:"dynamic_bytes,omitempty"` // further ones while its largest batch runs
	LoadNS       time.Duration `json:"load_ns,omitempty"`       // of loading
	WarmUpNS     time.Duration `json:"warm_up_ns,omitempty"`    // of running every batch size afterwards
}

// profiles is the content of a profile.json.
type profiles struct {
	Format   int         `json:"format"`
	Profiles profileList `json:"profiles"`
}

// profileList is decoded element by element, so that a file of empty profiles does not take many times its size in
// memory.
type profileList []Profile

// UnmarshalJSON implements json.Unmarshaler.
func (l *profileList) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		return nil
	}

	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if t, err := dec.Token(); err != nil || t != json.Delim('[') {
		return errors.Join(errors.New("profiles: want a list"), err)
	}

	for dec.More() {
		// Count each entry before decoding it, so that the limit also bounds the memory.
		if len(*l) == hostsMax {
			return fmt.Errorf("profiles: more than %d entries", hostsMax)
		}

		var p Profile
		if err := dec.Decode(&p); err != nil {
			return fmt.Errorf("profiles[%d]: %w", len(*l), err)
		}

		*l = append(*l, p)
	}
	return nil
}

// Check returns an error that names an invalid field of p, its value and what is allowed.
func (p Profile) Check() error {
	switch {
	case p.Host == "" || len(p.Host) > 256:
		return fmt.Errorf("host: %q: want 1 to 256 bytes", shortenText(p.Host))
	case len(p.TableNS) == 0 || len(p.TableNS) > BatchMaxLimit:
		return fmt.Errorf("table_ns: %d entries: want 1 to %d", len(p.TableNS), BatchMaxLimit)
	}

	if _, err := profile.New(p.TableNS); err != nil {
		return fmt.Errorf("table_ns: %w", err)
	}
	for i, v := range []int64{p.StaticBytes, p.DynamicBytes, int64(p.LoadNS), int64(p.WarmUpNS)} {
		if v < 0 {
			return fmt.Errorf("%s: %d: want 0 or more", []string{"static_bytes", "dynamic_bytes", "load_ns", "warm_up_ns"}[i], v)
		}
	}

	// JSON has no NaN, but a program that fills in a Profile may use it.
	for i, v := range []float64{p.AlphaNS, p.BetaNS, p.R2} {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("%s: %v: want a finite number", []string{"alpha_ns", "beta_ns", "r2"}[i], v)
		}
	}
	return nil
}

// readProfiles reads a profile.json; a missing file holds no profiles.
func readProfiles(path string) ([]Profile, error) {
	text, err := readLimited(path, profileBytesMax)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseProfiles(path, text)
}

func parseProfiles(path string, text []byte) ([]Profile, error) {
	var file profiles

	// Refuse unknown fields: a misspelt field would count as missing.
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&file); err != nil {
		return nil, fmt.Errorf("%s: byte %d: %w", path, dec.InputOffset(), err)
	}

	if file.Format != profileFormat {
		return nil, fmt.Errorf("%s: format: %d: want %d", path, file.Format, profileFormat)
	}

	for i, p := range file.Profiles {
		if err := p.Check(); err != nil {
			return nil, fmt.Errorf("%s: profiles[%d].%w", path, i, err)
		}
	}
	return file.Profiles, nil
}

// SetProfile stores p beside m's version and replaces an earlier profile of the same host kind. The file is replaced
// atomically: after an error, such as a full disk, the old one remains.
func (m *Model) SetProfile(p Profile) error {
	if err := p.Check(); err != nil {
		return fmt.Errorf("profile of %s version %s: %w", m.Name, m.Version, err)
	}
	if m.VersionDir == "" {
		return fmt.Errorf("profile of %s version %s: the model has no directory for this version", m.Name, m.Version)
	}

	// An exit has no directory for its parent's version until it has a profile.
	if m.ExitStage > 0 {
		if err := os.MkdirAll(m.VersionDir, 0o755); err != nil {
			return fmt.Errorf("profile of %s version %s: %w", m.Name, m.Version, explainError(err))
		}
	}

	// Read the file again: another process on the host may have stored a profile since.
	path := filepath.Join(m.VersionDir, profileFile)
	all, err := readProfiles(path)
	if err != nil {
		return fmt.Errorf("%w; repair or remove the file first", err)
	}

	all = slices.DeleteFunc(all, func(o Profile) bool { return o.Host == p.Host })
	if len(all) >= hostsMax {
		return fmt.Errorf("%s: holds %d host kinds already; remove one first", path, len(all))
	}

	all = append(all, p)
	text, err := json.MarshalIndent(profiles{Format: profileFormat, Profiles: all}, "", " ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	if err := WriteFile(path, append(text, '\n')); err != nil {
		return err
	}
	m.Profiles = all
	return nil
}

// Profile returns the profile of one host kind.
func (m *Model) Profile(host string) (Profile, bool) {
	for _, p := range m.Profiles {
		if p.Host == host {
			return p, true
		}
	}
	return Profile{}, false
}

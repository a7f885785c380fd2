package repo

import (
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// Agent is one of model_repository_agents. "checksum" is the only agent; its parameters are files and their
// checksums.
type Agent struct {
	Name string
	Sums []Checksum
}

// Checksum is the expected checksum of a file in the model's directory.
type Checksum struct {
	Kind string // MD5 or SHA256
	Path string // below the model's directory
	Sum  string // hexadecimal
}

var hashes = map[string]func() hash.Hash{"MD5": md5.New, "SHA256": sha256.New}

const checksumsMax = 1024

func (d *decoder) readAgents(out *[]Agent) func(value) error {
	return func(v value) error {
		return d.decodeFields(v.sub, "model_repository_agents", rules{"agents": {read: d.readAgent(out), repeated: true}}, v)
	}
}

func (d *decoder) readAgent(out *[]Agent) func(value) error {
	return func(v value) error {
		var a Agent
		err := d.decodeFields(v.sub, "model_repository_agents.agents", rules{
			"name":       {read: d.readText(&a.Name)},
			"parameters": {read: d.readChecksum(&a.Sums), repeated: true},
		}, v)
		switch {
		case err != nil:
			return err
		case a.Name != "checksum":
			return d.failAt(value{at: v.at}, "model_repository_agents.agents.name", "%q: want \"checksum\", the only agent there is", shortenText(a.Name))
		}

		*out = append(*out, a)
		return nil
	}
}

// readChecksum returns a reader of one parameter of the agent. Its key is "MD5:file", as in Triton, or "SHA256:file";
// its value is the checksum.
func (d *decoder) readChecksum(out *[]Checksum) func(value) error {
	return func(v value) error {
		var key string
		var s Checksum
		err := d.decodeFields(v.sub, "model_repository_agents.agents.parameters", rules{"key": {read: d.readText(&key)}, "value": {read: d.readText(&s.Sum)}}, v)
		if err != nil {
			return err
		}

		s.Kind, s.Path, _ = strings.Cut(key, ":")
		sum, err := hex.DecodeString(s.Sum)

		// A path out of the model's directory would let a repository probe any file of the host.
		switch made := hashes[s.Kind]; {
		case made == nil || !filepath.IsLocal(s.Path):
			return d.failAt(value{at: v.at}, "model_repository_agents.agents.parameters.key", "%q: want one of %s, a colon and a file within the model's directory",
				shortenText(key), strings.Join(slices.Sorted(maps.Keys(hashes)), ", "))
		case err != nil || len(sum) != made().Size():
			return d.failAt(value{at: v.at}, "model_repository_agents.agents.parameters.value", "%q: want the %d hexadecimal digits of an %s sum", shortenText(s.Sum), 2*made().Size(), s.Kind)
		case len(*out) == checksumsMax:
			return d.failAt(value{at: v.at}, "model_repository_agents.agents.parameters", "more than %d", checksumsMax)
		}
		*out = append(*out, s)
		return nil
	}
}

// checkSums verifies the files of a model against the checksums of its agents.
func checkSums(dir string, agents []Agent) error {
	for _, a := range agents {
		for _, s := range a.Sums {
			if err := s.checkFile(dir); err != nil {
				return fmt.Errorf("model_repository_agents: %s of %s: %w", s.Kind, s.Path, err)
			}
		}
	}
	return nil
}

func (s Checksum) checkFile(dir string) error {
	f, err := openRegular(filepath.Join(dir, s.Path))
	if err != nil {
		return err
	}
	defer f.Close()

	h := hashes[s.Kind]()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}

	// Compare without regard to case: tools print hexadecimal digits in either case.
	if got := hex.EncodeToString(h.Sum(nil)); !strings.EqualFold(got, s.Sum) {
		return fmt.Errorf("the file has %s, config.pbtxt says %s", got, s.Sum)
	}
	return nil
}

package backend

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"downbeat.dev/core/model"
)

// override replaces a model's files.
type override struct {
	config string
	files  string // a directory that replaces the repository; empty: only the configuration is replaced
}

// discard removes the override's files, which are no longer used.
func (o *override) discard() error {
	if o == nil || o.files == "" {
		return nil
	}
	return os.RemoveAll(o.files)
}

// Limits of a command's files.
const (
	overrideFilesMax = 1024
	overridePathMax  = 512
)

// overridePrefix begins the name of each such directory.
const overridePrefix = "downbeat-model-"

// newOverride writes a command's files to a new directory in parent, or in the directory for temporary files if
// parent is empty. The texts are the configuration, then paths and contents in turn.
func newOverride(parent, name string, packed []byte) (*override, error) {
	if name == "" || !filepath.IsLocal(name) || strings.ContainsAny(name, "/\\") { // the name becomes a directory's
		return nil, fmt.Errorf("model %.40q: want a name without slashes", name)
	}

	config, rest, ok := model.NextText(packed)
	if !ok {
		return nil, errors.New("override: it is cut")
	}

	// Without files the repository's stay in use, under the new configuration.
	o := &override{config: string(config)}
	if len(rest) == 0 {
		return o, nil
	}
	if o.config == "" {
		return nil, errors.New("files of a model are given without its config: want both")
	}

	// No half-written directory stays behind.
	var err error
	if o.files, err = os.MkdirTemp(parent, overridePrefix+"*"); err != nil {
		return nil, err
	}
	if err := o.write(name, rest); err != nil {
		return nil, errors.Join(err, o.discard())
	}
	return o, nil
}

// write writes the files and the configuration, as a model's directory.
func (o *override) write(name string, rest []byte) error {
	dir := filepath.Join(o.files, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.pbtxt"), []byte(o.config), 0o600); err != nil {
		return err
	}

	for n := 0; len(rest) > 0; n++ {
		path, more, ok := model.NextText(rest)
		content, after, whole := model.NextText(more)
		switch p := string(path); {
		case !ok || !whole:
			return errors.New("override: it is cut")
		case n == overrideFilesMax:
			return fmt.Errorf("file: more than %d of them", overrideFilesMax)

		// A path from a client must not lead out of the directory.
		case len(p) > overridePathMax || !filepath.IsLocal(p) || strings.ContainsAny(p, "\\\x00"):
			return fmt.Errorf("file %.40q: want a path below the model's directory, such as 1/model.onnx", p)
		}

		rest = after
		to := filepath.Join(dir, string(path))
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(to, content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

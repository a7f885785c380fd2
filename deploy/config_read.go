package deploy

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"gopkg.in/yaml.v3"
)

// fileSizeMax bounds the size of a configuration or a secret.
const fileSizeMax = 1 << 20

// Load reads a YAML file over the defaults. Unknown and duplicate keys are errors that name the line.
func Load(path string) (Config, error) {
	c := Default()
	text, err := readBounded(path)
	if err != nil {
		return c, fmt.Errorf("config: %w", err)
	}

	// Refuse unknown keys: a mistyped key would have no effect.
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)

	// An empty file is a valid configuration; decoding it returns io.EOF.
	if err := dec.Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		said := wrongForm.ReplaceAllString(err.Error(), "want a text: lists are one text too, with commas")
		return c, fmt.Errorf("config %s: %s", path, unknownKey.ReplaceAllStringFunc(said, nameKeys))
	}
	return c, nil
}

// unknownKey matches package yaml's error, with the key and the type of its section.
var unknownKey = regexp.MustCompile(`field (\S+) not found in type deploy\.(\w+)`)

// wrongForm matches package yaml's error about a map or a sequence, the forms in which other programs' files have lists.
var wrongForm = regexp.MustCompile(`cannot unmarshal !!(map|seq) into string`)

// nameKeys adds the valid keys to package yaml's error about an unknown key.
func nameKeys(text string) string {
	said := unknownKey.FindStringSubmatch(text)
	return said[1] + ": no such key; the keys are " + strings.Join(configKeys(strings.ToLower(said[2])), ", ")
}

// configKeys returns the valid keys of a section, in the order of its type. The section config is the file itself.
func configKeys(section string) []string {
	var all []string

	// The YAML of an empty configuration has every key, in order; keys of a section are indented.
	within := "config"
	for line := range strings.Lines(Config{}.YAML()) {
		key, _, _ := strings.Cut(line, ":")
		switch inner := strings.TrimSpace(key); {
		case inner == key:
			within = key
			if section == "config" {
				all = append(all, key)
			}
		case within == section:
			all = append(all, inner)
		}
	}
	return all
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()

	// Reading one byte more than the limit reveals a file that is too long.
	text, err := io.ReadAll(io.LimitReader(f, fileSizeMax+1))
	if err != nil {
		return nil, err
	}
	if len(text) > fileSizeMax {
		return nil, fmt.Errorf("%s: larger than %d bytes", path, fileSizeMax)
	}
	return text, nil
}

// Parse reads flags over the file that -config names (or the defaults), and checks the result. command selects the
// knobs that have a flag; extra registers the command's own flags. Parse returns the arguments after the flags. The
// error about a flag is a UsageError.
func Parse(command string, args []string, extra func(*flag.FlagSet)) (Config, []string, error) {
	path, err := configPath(args)
	if err != nil {
		return Config{}, nil, err
	}

	// Read the file first: its values are the defaults of the flags, which override it.
	c := Default()
	if path != "" {
		if c, err = Load(path); err != nil {
			return c, nil, err
		}
	}
	inFile := c.Check()

	fs := flag.NewFlagSet("downbeat "+command, flag.ContinueOnError)
	// configPath has already read this flag; register it for the help text.
	fs.String("config", path, "YAML `file`; flags win over it")

	// A command has only flags for the knobs that it reads; any other flag is an error.
	c.registerFlags(fs, command)
	if extra != nil {
		extra(fs)
	}
	if err := ParseFlags(fs, args); err != nil {
		return c, nil, err
	}

	// What the file has right and the flags have wrong is a wrong command line.
	err = c.Check()
	if err != nil && inFile == nil {
		err = UsageError(err.Error())
	}
	return c, fs.Args(), err
}

package repo

import (
	"fmt"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"downbeat.dev/core/model"
)

// Labels returns the class names of an output, by index; nil if it has none.
func (m *Model) Labels(output string) []string {
	for i := range m.Outputs {
		if m.Outputs[i].Name == output {
			return m.Outputs[i].Labels
		}
	}
	return nil
}

// readLabels reads the label file of every output that names one, with one class per line.
func readLabels(dir string, c *Config) error {
	for i := range c.Outputs {
		o := &c.Outputs[i]
		if o.LabelFilename == "" {
			continue
		}

		text, err := readLimited(filepath.Join(dir, o.LabelFilename), labelBytesMax)
		if err == nil {
			o.Labels, err = splitLabels(string(text))
		}
		if err != nil {
			return fmt.Errorf("output.label_filename of %q: %w", o.Name, err)
		}
	}
	return nil
}

// splitLabels returns the lines of a label file. They must fit into a message, since frontends receive all of them.
func splitLabels(text string) ([]string, error) {
	// Editors end files with a newline, and some end lines with two bytes; neither is part of a label.
	labels := strings.Split(strings.TrimRight(strings.ReplaceAll(text, "\r\n", "\n"), "\n"), "\n")
	if len(labels) > model.LabelsMax {
		return nil, fmt.Errorf("%d labels: want at most %d", len(labels), model.LabelsMax)
	}

	// Frontends refuse messages with labels that are not UTF-8 or too long.
	for i, label := range labels {
		switch {
		case !utf8.ValidString(label):
			return nil, fmt.Errorf("line %d: %q: want UTF-8", i+1, shortenText(label))
		case len(label) > model.LabelBytesMax:
			return nil, fmt.Errorf("line %d: a label of %d bytes: want at most %d", i+1, len(label), model.LabelBytesMax)
		}
	}
	return labels, nil
}

package deploy

import (
	"flag"
	"fmt"
	"strconv"
	"strings"
)

// Accuracy is what an operator says of families of models.
type Accuracy struct {
	Floors string `yaml:"floors"` // least accuracy that may answer, by family: vehicle=0.9,activity=0.8; empty: any variant may
}

func (a *Accuracy) registerFlags(fs *flag.FlagSet) {
	fs.StringVar(&a.Floors, "accuracy-floors", a.Floors, "least accuracy that may answer, by family: a `list` such as vehicle=0.9,activity=0.8")
}

// accuracyReaders is readers for the section.
var accuracyReaders = map[string][]string{
	"accuracy-floors": {"demo", "serve", "scheduler"},
}

// ByFamily returns the floors by family.
func (a Accuracy) ByFamily() (map[string]float64, error) {
	floors := map[string]float64{}

	for _, part := range strings.FieldsFunc(a.Floors, func(r rune) bool { return r == ',' || r == ' ' }) {
		name, text, _ := strings.Cut(part, "=")
		floor, err := strconv.ParseFloat(text, 64)
		if name == "" || err != nil || !(floor >= 0 && floor <= 1) {
			return nil, fmt.Errorf("%q: want FAMILY=NUMBER with a number from 0 to 1", part)
		}

		// Of two floors for a family nobody could say which holds.
		if _, twice := floors[name]; twice {
			return nil, fmt.Errorf("family %q is there twice", name)
		}
		floors[name] = floor
	}

	return floors, nil
}

func (a Accuracy) checkFields() []error {
	if _, err := a.ByFamily(); err != nil {
		return []error{fmt.Errorf("accuracy.floors: %w", err)}
	}
	return nil
}

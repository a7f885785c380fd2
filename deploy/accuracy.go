package deploy

import (
	"fmt"
	"strconv"
	"strings"
)

// Accuracy holds an operator's settings for families of models.
type Accuracy struct {
	Floors string `yaml:"floors"` // lowest accuracy of an answer, by family: vehicle=0.9,activity=0.8; empty: any variant
}

// ByFamily returns the floors by family.
func (a Accuracy) ByFamily() (map[string]float64, error) {
	floors := map[string]float64{}

	for _, part := range strings.FieldsFunc(a.Floors, func(r rune) bool { return r == ',' || r == ' ' }) {
		name, text, _ := strings.Cut(part, "=")
		floor, err := strconv.ParseFloat(text, 64)
		if name == "" || err != nil || !(floor >= 0 && floor <= 1) {
			return nil, fmt.Errorf("%q is not allowed: want FAMILY=NUMBER with a number from 0 to 1", part)
		}

		// Refuse two floors for a family: it would be unclear which one holds.
		if _, twice := floors[name]; twice {
			return nil, fmt.Errorf("%q is not allowed: family %q is there twice", a.Floors, name)
		}
		floors[name] = floor
	}

	return floors, nil
}

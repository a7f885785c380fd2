package figure

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

const claimsFile = "claims.csv"

var claimsHeader = []string{"figure", "what", "published", "ours", "verdict", "why"}

// ReadClaims returns the claims of a directory by figure; none if no figure has been written.
func ReadClaims(dir string) (map[string][]Claim, error) {
	f, err := os.Open(filepath.Join(dir, claimsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return map[string][]Claim{}, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()

	c := csv.NewReader(f)
	c.FieldsPerRecord = len(claimsHeader)
	records, err := c.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}

	claims := map[string][]Claim{}
	for i, r := range records {
		// The first record is the header.
		if i > 0 {
			claims[r[0]] = append(claims[r[0]], Claim{r[1], r[2], r[3], Verdict(r[4]), r[5]})
		}
	}
	return claims, nil
}

// replaceClaims rewrites a directory's claims with those of one figure replaced.
func replaceClaims(dir, id string, claims []Claim) error {
	all, err := ReadClaims(dir)
	if err != nil {
		return err
	}
	all[id] = claims

	// Write the figures in a fixed order, so that a change of one figure changes only its lines.
	var figures []string
	for f := range all {
		figures = append(figures, f)
	}
	slices.SortFunc(figures, compareIDs)

	records := [][]string{claimsHeader}
	for _, f := range figures {
		for _, c := range all[f] {
			records = append(records, []string{f, c.What, c.Published, c.Ours, string(c.Verdict), c.Why})
		}
	}
	return writeTable(filepath.Join(dir, claimsFile), records)
}

// compareIDs sorts f2 before f10.
func compareIDs(a, b string) int {
	// Shorter ids first puts f2 before f10 without parsing numbers.
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

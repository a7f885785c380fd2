package policy

import (
	"fmt"
	"slices"
	"strings"
)

// SelectFrom returns the policies in a comma-separated list, in its order, or all of them for "all".
func SelectFrom[P any](every []P, nameOf func(P) string, list string) (chosen []P, err error) {
	if list == "all" {
		return every, nil
	}

	var names []string
	for _, p := range every {
		names = append(names, nameOf(p))
	}
	for name := range strings.SplitSeq(list, ",") {
		i := slices.Index(names, name)
		if i < 0 {
			return nil, fmt.Errorf("policy %q: want all, or some of %s", name, strings.Join(names, ", "))
		}
		chosen = append(chosen, every[i])
	}
	return chosen, nil
}

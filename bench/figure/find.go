package figure

import (
	"fmt"
	"strings"
)

// Find returns the figure with an ID, ignoring case. The error for an unknown ID lists all IDs.
func Find[F any](all []F, idOf func(F) string, id string) (found F, err error) {
	var ids []string
	for _, f := range all {
		if idOf(f) == strings.ToLower(id) {
			return f, nil
		}
		ids = append(ids, idOf(f))
	}
	return found, fmt.Errorf("%q: want one of %s", id, strings.Join(ids, ", "))
}

package figure

import (
	"fmt"
	"strings"
)

// IDs returns the figures' IDs.
func IDs[F any](all []F, idOf func(F) string) (ids []string) {
	for _, f := range all {
		ids = append(ids, idOf(f))
	}
	return ids
}

// Find returns the figure with an ID, ignoring case. The error for an unknown ID lists all IDs.
func Find[F any](all []F, idOf func(F) string, id string) (found F, err error) {
	for _, f := range all {
		if idOf(f) == strings.ToLower(id) {
			return f, nil
		}
	}
	return found, fmt.Errorf("%q: want one of %s", id, strings.Join(IDs(all, idOf), ", "))
}

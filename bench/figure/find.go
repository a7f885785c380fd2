package figure

import (
	"fmt"
	"strings"
)

// Find returns the figure of an ID, in whatever case that is written. The error of another one lists all that there are.
func Find[F any](all []F, idOf func(F) string, id string) (found F, err error) {
	var ids []string
	for _, f := range all {
		if idOf(f) == strings.ToLower(id) {
			return f, nil
		}
		ids = append(ids, idOf(f))
	}
	return found, fmt.Errorf("%q: want of %s", id, strings.Join(ids, ", "))
}

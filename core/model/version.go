package model

import (
	"cmp"
	"strconv"
)

// CompareVersions orders versions from old to new, as cmp.Compare does. Numbers compare by value, so 10 is newer than
// 9; other words compare as text and are older than any number.
func CompareVersions(a, b string) int {
	x, errX := strconv.ParseUint(a, 10, 64)
	y, errY := strconv.ParseUint(b, 10, 64)

	switch {
	case errX == nil && errY == nil:
		return cmp.Compare(x, y)
	case errX != nil && errY != nil:
		return cmp.Compare(a, b)
	case errX != nil:
		return -1
	}
	return 1
}

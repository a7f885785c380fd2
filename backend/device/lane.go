package device

import (
	"fmt"
	"strings"
)

// LanesMax is the most lanes of one device.
const LanesMax = 16

// LaneKind returns the kind of a lane, one of several equal parts of a device of a kind. It differs from the kind of the
// whole device, because a batch takes there as long as it does while all lanes run (docs/decisions/0399).
func LaneKind(kind string, lanes int) string {
	if kind == "" || lanes < 2 {
		return kind
	}
	return fmt.Sprintf("%s%s%d", kind, laneMark, lanes)
}

// IsLaneKind reports whether LaneKind made a kind.
func IsLaneKind(kind string) bool { return strings.Contains(kind, laneMark) }

// laneMark comes before the number of lanes. It is legal in labels, in file contents and in the gateway's page.
const laneMark = "/lanes-"

// LaneName returns the name of a device's lane by its index.
func LaneName(name string, lane, lanes int) string {
	if lanes < 2 {
		return name
	}
	return fmt.Sprintf("%s lane %d of %d", name, lane+1, lanes)
}

package gateway

import (
	"testing"

	"downbeat.dev/core/model"
	"downbeat.dev/frontend/gateway/oip"
)

// TestDatatypesHaveTheProtocolsNumbers: config.pbtxt's names are TYPE_ followed by the datatype's name, except for
// BYTES.
func TestDatatypesHaveTheProtocolsNumbers(t *testing.T) {
	for _, d := range model.Datatypes() {
		want := "TYPE_" + string(d)
		if d == model.Bytes {
			want = "TYPE_STRING"
		}
		if got := dataType(d); got.String() != want {
			t.Errorf("%s: %v, want %s", d, got, want)
		}
	}
	if got := dataType("no datatype"); got != oip.DataType_TYPE_INVALID {
		t.Errorf("no datatype: %v, want %v", got, oip.DataType_TYPE_INVALID)
	}
}

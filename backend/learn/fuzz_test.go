package learn

import (
	"encoding/binary"
	"strconv"
	"testing"
)

// FuzzLesson decodes a client's samples. Whatever they are, those that are taken have the size and a class of the model, and
// no error leaves some.
func FuzzLesson(f *testing.F) {
	about := &TrainableModel{Height: 1, Width: 2, Classes: 3}
	sample := func(class uint32) []byte {
		return append(binary.LittleEndian.AppendUint32(nil, class), make([]byte, 6)...)
	}
	f.Add("", sample(2))
	f.Add("7", append(sample(1|3<<16), sample(0)...))
	f.Add("7", append(sample(2), 1, 2, 3, 4, 5))
	f.Add("1+big", sample(70_000))
	f.Fuzz(func(t *testing.T, version string, packed []byte) {
		size := len(packed)
		all, err := about.unpackLesson(version, packed)
		if err != nil {
			return
		}
		number, _ := strconv.Atoi(version)
		if len(all)*10 != size {
			t.Errorf("%d samples of %d bytes", len(all), size)
		}
		for _, s := range all {
			if len(s.Input) != 6 || s.Class < 0 || s.Class >= 3 {
				t.Errorf("sample of %d bytes, class %d", len(s.Input), s.Class)
			}
			if s.Served != (Served{}) && (s.Served.Version != number || s.Served.Class < 0 || s.Served.Class >= 1<<16) {
				t.Errorf("answered %+v by version %q", s.Served, version)
			}
		}
	})
}

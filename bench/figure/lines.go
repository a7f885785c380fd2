package figure

import (
	"encoding/json"
	"io"
)

// WriteLines writes one JSON object per line.
func WriteLines[R any](w io.Writer, rows ...R) error {
	e := json.NewEncoder(w)
	for _, r := range rows {
		if err := e.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

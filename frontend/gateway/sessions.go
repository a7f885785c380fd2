package gateway

import (
	"io"
	"net/http"
)

// sessionsPath is where the sessions of applications and their latest frames are asked for.
const sessionsPath = "/v2/downbeat/sessions"

// statusWriter is what Applications may be, too: those that know their sessions.
type statusWriter interface {
	// WriteStatus writes a JSON object whose applications are an array.
	WriteStatus(w io.Writer) error
}

// restSessions answers with the status of all applications; there may be none.
func (g *Gateway) restSessions(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if all, ok := g.o.Applications.(statusWriter); ok {
		_ = all.WriteStatus(w) // whoever asked has gone
		return
	}
	_, _ = io.WriteString(w, `{"applications":[]}`+"\n")
}

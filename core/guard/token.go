package guard

import (
	"crypto/subtle"
	"encoding/json"
	"net/http"
	"strings"
)

// TokenNeeded is the error text of a call without the token.
const TokenNeeded = `header authorization: must be "Bearer" and the token that the gateway was given`

// RequireToken passes calls that carry the token. If token is empty, it passes all calls except those of foreign
// sites. Paths for which isOpen returns true need no token.
func RequireToken(token string, isOpen func(path string) bool, next http.Handler) http.Handler {
	if token == "" {
		return RefuseForeignSites(next)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case Bears(r.Header.Get("Authorization"), token):
			CallersConnection(r.Context()).Trust()
		case !isOpen(r.URL.Path):
			RefuseToken(w, TokenNeeded)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// RefuseToken answers a call whose token is not valid for it.
func RefuseToken(w http.ResponseWriter, why string) {
	w.Header().Set("WWW-Authenticate", "Bearer")
	Refuse(w, http.StatusUnauthorized, why)
}

// Refuse answers with an error in the form of the Open Inference Protocol: a JSON object with the text.
func Refuse(w http.ResponseWriter, status int, text string) {
	// These errors pass: a client that retries in a second may be served.
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	WriteJSON(w, status, map[string]string{"error": text})
}

// WriteJSON answers with a value as JSON.
func WriteJSON(w http.ResponseWriter, status int, body any) {
	text, err := json.Marshal(body)
	if err != nil { // cannot happen with our own values
		status, text = http.StatusInternalServerError, []byte(`{"error":"internal"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(text)
}

// Bears reports whether an authorization header contains the token.
func Bears(header, token string) bool {
	sent, ok := BearerToken(header)

	// Constant time: the duration must not reveal how much of a guess is right.
	return ok && subtle.ConstantTimeCompare([]byte(sent), []byte(token)) == 1
}

// BearerToken returns the token of an authorization header.
func BearerToken(header string) (token string, ok bool) { return strings.CutPrefix(header, "Bearer ") }

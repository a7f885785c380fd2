//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"downbeat.dev/deploy"
)

// statusFlags say whom to ask for a status, and how to print it.
type statusFlags struct {
	name                   string // the command's, for errors
	url, tokenFile, format string
}

// addStatusFlags adds the flags of a command that prints the status of whom the usage describes.
func addStatusFlags(fs *flag.FlagSet, whom string) *statusFlags {
	f := &statusFlags{name: strings.TrimPrefix(fs.Name(), "downbeat ")}
	fs.StringVar(&f.url, "url", "http://127.0.0.1:8000", "`address` of "+whom)
	fs.StringVar(&f.tokenFile, "token-file", "", "`file` with the secret that all parts share")
	fs.StringVar(&f.format, "o", "table", "table or json")
	return f
}

// readSecret returns the secret of the token file, and says what is wrong with the flags: before anybody is asked, so that
// a wrong file is told as such.
func (f *statusFlags) readSecret() (string, error) {
	if err := checkFormat(f.format); err != nil {
		return "", err
	}
	return deploy.Config{TokenFile: f.tokenFile}.Token()
}

// ask reads the status that lies at a path into x. Where JSON was asked for it prints the answer as it came and reports
// that: fields that this binary does not know are not lost.
func (f *statusFlags) ask(ctx context.Context, path string, x any) (printed bool, err error) {
	token, err := f.readSecret()
	if err != nil {
		return false, err
	}

	text, err := fetchStatus(ctx, f.url, path, token)
	if err != nil {
		return false, fmt.Errorf("%s: %w", f.name, err)
	}
	if f.format == "json" {
		_, err = os.Stdout.Write(append(bytes.TrimRight(text, "\n"), '\n'))
		return true, err
	}

	if err := json.Unmarshal(text, x); err != nil {
		return false, fmt.Errorf("%s: %s: %w", f.name, f.url, err)
	}

	return false, nil
}

// statusMost bounds what a peer may answer: an explanation has up to 65,536 classes of a few hundred bytes.
const statusMost = 256 << 20

// fetchStatus asks a gateway or a scheduler for what lies at a path.
func fetchStatus(ctx context.Context, url, path, token string) ([]byte, error) {
	return callServer(ctx, 10*time.Second, http.MethodGet, url, path, token, nil)
}

// callServer makes a call to a gateway or a scheduler, and ends it when it has taken too long.
func callServer(ctx context.Context, most time.Duration, method, url, path, token string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(url, "/")+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}

	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return answerText(http.DefaultClient.Do(r))
}

// answerText reads an answer, or why there is none.
func answerText(answer *http.Response, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()

	// The text is read before the status is looked at: an error's text says why.
	text, err := io.ReadAll(io.LimitReader(answer.Body, statusMost))
	switch {
	case err != nil:
		return nil, err
	case answer.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s: %s: %s", answer.Request.URL.Host, answer.Status, text)
	}

	return text, nil
}

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

// statusFlags name the server to ask and the output format.
type statusFlags struct {
	name                   string // the command's name, for errors
	url, tokenFile, format string
}

// addStatusFlags registers the flags of a command that prints a server's status. whom describes the server in the
// help text.
func addStatusFlags(fs *flag.FlagSet, whom string) *statusFlags {
	f := &statusFlags{name: strings.TrimPrefix(fs.Name(), "downbeat ")}
	fs.StringVar(&f.url, "url", "http://127.0.0.1:8000", "`address` of "+whom)
	fs.StringVar(&f.tokenFile, "token-file", "", "`file` with the secret that all parts share")
	fs.StringVar(&f.format, "o", "table", "table or json")
	return f
}

// readSecret checks the format flag and returns the secret in the token file. Call it before contacting the server,
// so that an error names the file.
func (f *statusFlags) readSecret() (string, error) {
	if err := checkFormat(f.format); err != nil {
		return "", err
	}
	return deploy.Config{TokenFile: f.tokenFile}.Token()
}

// ask fetches the status at path and decodes it into x. With -o json it prints the answer unchanged, to keep fields
// that this binary does not know, and returns printed.
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

// statusMost limits the size of an answer: an explanation has up to 65,536 classes of a few hundred bytes.
const statusMost = 256 << 20

// fetchStatus gets the status at path from a gateway or a scheduler.
func fetchStatus(ctx context.Context, url, path, token string) ([]byte, error) {
	return callServer(ctx, 10*time.Second, http.MethodGet, url, path, token, nil)
}

// callServer calls a gateway or a scheduler, with most as its timeout.
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

// answerText returns the body of an answer, or an error that contains it.
func answerText(answer *http.Response, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()

	// Read the body before checking the status: an error's body has the reason.
	text, err := io.ReadAll(io.LimitReader(answer.Body, statusMost))
	switch {
	case err != nil:
		return nil, err
	case answer.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s: %s: %s", answer.Request.URL.Host, answer.Status, text)
	}

	return text, nil
}

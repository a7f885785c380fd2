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
	"net/url"
	"os"
	"strings"
	"time"

	"downbeat.dev/deploy"
)

// statusFlags name the server to ask and the output format.
type statusFlags struct {
	name                   string // the command's name, for errors
	url, tokenFile, format string
	tls, tlsName           string
}

// access holds the token and the certificates of a call to a server.
type access struct {
	token  string
	client *http.Client // nil: the default one
}

// addStatusFlags registers the flags of a command that prints a server's status. whom describes the server in the
// help text.
func addStatusFlags(fs *flag.FlagSet, whom string) *statusFlags {
	f := &statusFlags{name: strings.TrimPrefix(fs.Name(), "downbeat ")}
	fs.StringVar(&f.url, "url", "http://127.0.0.1:8000", "`address` of "+whom)
	fs.StringVar(&f.tokenFile, "token-file", "", "`file` with the secret that all parts share")
	fs.StringVar(&f.tls, "tls", "", "`directory` with the ca.crt that signed an https server's certificate; empty: the host's authorities")
	fs.StringVar(&f.tlsName, "tls-name", "", "`name` in an https server's certificate; empty: the host of -url")
	fs.StringVar(&f.format, "o", "table", "output `format`: table or json")
	return f
}

// access checks the flags and reads the files that they name. Call it before contacting the server, so that an error
// names the flag or the file.
func (f *statusFlags) access() (access, error) {
	if err := checkFormat(f.format); err != nil {
		return access{}, err
	}
	for at := range strings.SplitSeq(f.url, ",") {
		if u, err := url.Parse(at); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return access{}, usageErrorf("%s: -url %s: want http://HOST:PORT or https://HOST:PORT", f.name, at)
		}
	}

	c := deploy.Config{TokenFile: f.tokenFile, TLS: f.tls}
	c.Cluster.TLSName = f.tlsName
	token, err := c.Token()
	if err != nil {
		return access{}, err
	}
	t, err := c.CallerTLS()
	if err != nil {
		return access{}, err
	}

	// Proxies and timeouts are as in the default transport.
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = t
	return access{token, &http.Client{Transport: transport}}, nil
}

// ask fetches the status at path and decodes it into x. With -o json it prints the answer unchanged, to keep fields
// that this binary does not know, and returns printed.
func (f *statusFlags) ask(ctx context.Context, path string, x any) (printed bool, err error) {
	a, err := f.access()
	if err != nil {
		return false, err
	}

	text, err := fetchStatus(ctx, f.url, path, a)
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
func fetchStatus(ctx context.Context, url, path string, a access) ([]byte, error) {
	return callServer(ctx, 10*time.Second, http.MethodGet, url, path, a, nil)
}

// callServer calls a gateway or a scheduler, with most as its timeout.
func callServer(ctx context.Context, most time.Duration, method, url, path string, a access, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(url, "/")+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}

	if a.token != "" {
		r.Header.Set("Authorization", "Bearer "+a.token)
	}
	client := a.client
	if client == nil {
		client = http.DefaultClient
	}
	return answerText(client.Do(r))
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
		return nil, fmt.Errorf("%s: %s: %s", answer.Request.URL.Host, answer.Status, refusalText(text))
	}

	return text, nil
}

// refusalText returns the reason in the body of a refusal: {"error": REASON} from a part of Downbeat, any other text
// from a proxy.
func refusalText(body []byte) string {
	var refusal struct{ Error string }
	if json.Unmarshal(body, &refusal) == nil && refusal.Error != "" {
		return refusal.Error
	}
	return strings.TrimSpace(string(body))
}

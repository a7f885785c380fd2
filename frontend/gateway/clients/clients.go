// Package clients identifies the clients of a gateway by their own tokens, decides what each may do, and counts its
// requests. A file lists the clients, and is read again when it changes (decision 0056).
package clients

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// Reasons for refusing a client.
var (
	ErrRevoked  = errors.New("the token is no client's any more")
	ErrModel    = errors.New("the client may not use this model")
	ErrRate     = errors.New("the client's requests per second are used up")
	ErrInFlight = errors.New("the client has as many requests under way as it may have")
)

// Set is the clients that a file names. Its methods are safe for concurrent use.
type Set struct {
	path         string
	clusterToken string
	log          *slog.Logger
	salt         [sha256.Size]byte
	unknown      atomic.Uint64 // calls whose token belongs to no client
	table        atomic.Pointer[table]

	mu   sync.Mutex // guards what follows, and reading the file
	seen string     // the file's text at the last look
}

// table is the clients of one state of the file.
type table struct {
	byDigest map[digest]*Client
	inOrder  []*Client
}

// digest identifies a token: the hash of the token with the set's salt. A caller cannot choose digests that share a
// prefix with a client's, so the duration of a map lookup reveals nothing about a token.
type digest [sha256.Size]byte

// Open reads a file of clients. clusterToken must not be a client's token; log reports every later version of the
// file.
func Open(path, clusterToken string, log *slog.Logger) (*Set, error) {
	s := &Set{path: path, clusterToken: clusterToken, log: log}
	if _, err := rand.Read(s.salt[:]); err != nil {
		return nil, err
	}
	if _, err := s.reload(); err != nil {
		return nil, fmt.Errorf("client_tokens_file %s: %w", path, err)
	}
	return s, nil
}

// WatchEvery is the interval at which Watch checks the file.
const WatchEvery = time.Second

// Watch reads the file again whenever it changes, until ctx ends. An invalid file leaves the clients as they are, and
// is logged once.
func (s *Set) Watch(ctx context.Context, every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}

		changed, err := s.reload()
		if err != nil {
			s.log.Error("client_tokens_file cannot be used: the previous one stays in force", "file", s.path, "err", err)
		} else if changed {
			s.log.Info("client_tokens_file was read again", "file", s.path, "clients", len(s.table.Load().inOrder))
		}
	}
}

// reload reads the file and applies it if it changed since the last look. It returns an error once for each version
// of the file.
func (s *Set) reload() (changed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	// Compare contents, not times: a mounted secret changes through a link, and a file may change twice within a
	// clock tick.
	text, err := readFile(s.path)
	state := fmt.Sprintf("%x", sha256.Sum256(text))
	if err != nil {
		state = err.Error()
	}
	if state == s.seen {
		return false, nil
	}
	s.seen = state
	if err != nil {
		return false, err
	}

	entries, err := parseClients(text, s.clusterToken)
	if err != nil {
		return false, err
	}
	s.replaceTable(entries)
	return true, nil
}

// replaceTable puts entries in force. mu is held.
func (s *Set) replaceTable(entries []entry) {
	old := s.table.Load()
	usages := map[string]*usage{}
	if old != nil {
		for _, c := range old.inOrder {
			usages[c.Name] = c.usage
		}
	}

	// A client with the same name and token stays the same Client, because its streams continue; a client with the
	// same name keeps its usage.
	next := &table{byDigest: make(map[digest]*Client, len(entries))}
	for i := range entries {
		e := &entries[i]
		d := s.digestOf(e.token)
		var c *Client
		if old != nil {
			c = old.byDigest[d]
		}
		if c == nil || c.Name != e.name {
			c = &Client{Name: e.name, digest: d, usage: usages[e.name]}
			if c.usage == nil {
				c.usage = new(usage)
			}
		}

		// An unchanged client has its new limits from its next request on.
		c.limits.Store(&e.limits)
		next.byDigest[d] = c
		next.inOrder = append(next.inOrder, c)
	}
	s.table.Store(next)

	// Remove old limits last: a client that stays must never be without limits.
	if old != nil {
		for d, c := range old.byDigest {
			if next.byDigest[d] != c {
				c.limits.Store(nil)
			}
		}
	}
}

// digestOf returns the digest of a token.
func (s *Set) digestOf(token string) digest {
	var room [sha256.Size + tokenMax]byte // on the stack
	return sha256.Sum256(append(append(room[:0], s.salt[:]...), token...))
}

// Find returns the client that a token belongs to; nil: none.
func (s *Set) Find(token string) *Client {
	if len(token) <= tokenMax {
		d := s.digestOf(token)
		if c := s.table.Load().byDigest[d]; c != nil && subtle.ConstantTimeCompare(c.digest[:], d[:]) == 1 {
			return c
		}
	}
	s.unknown.Add(1)
	return nil
}

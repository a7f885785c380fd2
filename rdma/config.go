package rdma

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"

	"downbeat.dev/rdma/memory"
	"downbeat.dev/rdma/stream"
)

// Limits on what a peer can make a node do.
const (
	ChainMax   = stream.ChainMax   // reads of one chain
	MessageMax = stream.MessageMax // bytes of one message
	BufferMax  = memory.BufferMax  // bytes of one buffer
)

// Config configures a node. The zero value works on one host.
type Config struct {
	Listen    string        // "127.0.0.1:0" when empty
	Advertise string        // host or host:port that peers dial; empty: the listen address
	Token     string        // both ends must have the same; may be empty on a loopback address only
	Providers []string      // allowed providers, best first, of local, verbs, shm, tcp; empty: all, in this order
	TLS       *tls.Config   // for TCP; used for accepting and for connecting. Excludes verbs unless Providers names it
	PoolBytes int64         // limit of registered memory; 1 GiB when 0
	PeersMax  int           // peers at a time; 4096 when 0
	Stall     time.Duration // a peer without progress for this long is cut off; 2 s when 0
	Spin      time.Duration // verbs: longest polling for a completion before waiting for its event; 200 µs when 0
	Inline    bool          // Receive and done never wake a goroutine, so the loop need not yield to one
	// Receive receives a message from a peer. msg is valid during the call; calls for one peer come one after
	// another. It must not block, as it runs on the loop that serves this node's reads. It may call Send and Read,
	// but not Withdraw or Close.
	Receive func(from *Peer, msg []byte)
	// Lost reports that a peer has gone, once per peer, after its last Receive. The same rules hold. May be nil.
	Lost   func(p *Peer, err error)
	Logger *slog.Logger

	owedMax int // limit of copied bytes that wait for all peers; the constant of that name when 0
}

// complete fills in defaults and refuses invalid values.
func (c *Config) complete() error {
	c.Listen = cmp.Or(c.Listen, "127.0.0.1:0")

	// Peers on other hosts must prove that they may read this node's memory.
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fmt.Errorf("%w: Listen %q: want host:port", ErrInvalid, c.Listen)
	}
	if c.Token == "" && !loopback(host) {
		return fmt.Errorf("%w: Token is empty, which is allowed on a loopback address only; Listen is %q", ErrInvalid, c.Listen)
	}

	for _, p := range c.Providers {
		if !slices.Contains(providerOrder, p) {
			return fmt.Errorf("%w: Providers names %q; there are %v", ErrInvalid, p, providerOrder)
		}
	}
	if c.PoolBytes < 0 || c.PeersMax < 0 || c.Stall < 0 || c.Spin < 0 {
		return fmt.Errorf("%w: PoolBytes %d, PeersMax %d, Stall %v, Spin %v: negative", ErrInvalid, c.PoolBytes, c.PeersMax, c.Stall, c.Spin)
	}

	c.PoolBytes = cmp.Or(c.PoolBytes, 1<<30)
	c.PeersMax = cmp.Or(c.PeersMax, 4096)
	c.Stall = cmp.Or(c.Stall, 2*time.Second)
	c.owedMax = cmp.Or(c.owedMax, owedMax)
	c.Spin = cmp.Or(c.Spin, 200*time.Microsecond)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

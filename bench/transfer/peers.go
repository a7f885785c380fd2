package transfer

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"downbeat.dev/rdma"
)

// endpoint describes one node of a child, one JSON line each.
type endpoint struct {
	Addr   string
	Remote rdma.Remote
}

// Serve runs the child: peers nodes with one offered buffer each, which echo every message, until in ends.
func Serve(in io.Reader, out io.Writer, provider, listen string, peers, bytes int) error {
	enc := json.NewEncoder(out)
	for i := range peers {
		n, err := rdma.Open(nodeConfig(provider, listen, int64(2*bytes), 0, func(from *rdma.Peer, msg []byte) { from.Send(msg) }))
		if err != nil {
			return err
		}
		defer n.Close()

		b, err := n.Alloc(bytes)
		if err != nil {
			return err
		}
		defer b.Free()

		// Each node's bytes differ, so that a read from the wrong one shows.
		for k := range b.Bytes() {
			b.Bytes()[k] = byte(i)
		}

		if err := enc.Encode(endpoint{n.Addr(), b.Offer()}); err != nil {
			return err
		}
	}

	// Serve reads until the parent closes the input.
	_, err := io.Copy(io.Discard, in)
	return err
}

func nodeConfig(provider, listen string, pool int64, spin time.Duration, receive func(*rdma.Peer, []byte)) rdma.Config {
	// Inline: these nodes' callbacks need no other goroutine, and a wake-up would be part of every latency.
	c := rdma.Config{Listen: listen + ":0", Token: os.Getenv(tokenEnv), PoolBytes: max(pool, 64<<20), Receive: receive,
		Stall: patience, Spin: spin, Inline: true}
	if c.Token == "" {
		c.Token = "bench"
	}

	if provider != "" {
		c.Providers = []string{provider}
	}
	return c
}

const tokenEnv = "DOWNBEAT_TOKEN"

// peers are the remote nodes of a measurement.
type peers struct {
	ends []endpoint
	stop func()
}

// startPeers runs each peer in its own process, or all in this one for the local provider.
func startPeers(ctx context.Context, c Config, provider string) (*peers, error) {
	if provider == "local" {
		return localPeers(c)
	}

	var children []func()
	p := &peers{stop: func() {
		for _, stop := range children {
			stop()
		}
	}}

	for range c.Peers {
		end, stop, err := startPeer(ctx, c, provider)
		if err != nil {
			p.stop()
			return nil, err
		}
		children = append(children, stop)
		p.ends = append(p.ends, end)
	}

	return p, nil
}

func startPeer(ctx context.Context, c Config, provider string) (e endpoint, stop func(), err error) {
	args := append(append([]string{}, c.Child[1:]...), "-serve", "1", "-provider", provider,
		"-listen", c.Listen, "-bytes", fmt.Sprint(c.Bytes))
	cmd := inNetNS(ctx, c.NetNS, c.Child[0], args...)

	// A peer ends with its stdin, so that it does not outlive a killed parent.
	in, err := cmd.StdinPipe()
	if err != nil {
		return e, nil, err
	}

	out, err := cmd.StdoutPipe()
	if err != nil {
		return e, nil, err
	}
	cmd.Stderr = os.Stderr

	if err := cmd.Start(); err != nil {
		return e, nil, fmt.Errorf("start peer: %w", err)
	}

	stop = func() { in.Close(); cmd.Wait() }

	if err := json.NewDecoder(out).Decode(&e); err != nil {
		stop()
		return e, nil, fmt.Errorf("the peer did not start, it says above why: %w", err)
	}
	return e, stop, nil
}

func inNetNS(ctx context.Context, ns, name string, args ...string) *exec.Cmd {
	if ns == "" {
		return exec.CommandContext(ctx, name, args...)
	}
	return exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", ns, name}, args...)...)
}

func localPeers(c Config) (*peers, error) {
	in, stopIn := io.Pipe()
	out, write := io.Pipe()
	done := make(chan error, 1)

	// The same child, in a goroutine: both forms run the same code.
	go func() {
		err := Serve(in, write, "local", c.Listen, c.Peers, c.Bytes)
		write.CloseWithError(err)
		done <- err
	}()

	p := &peers{stop: func() { stopIn.Close(); <-done }}

	dec := json.NewDecoder(out)
	for range c.Peers {
		var e endpoint
		if err := dec.Decode(&e); err != nil {
			p.stop()
			return nil, err
		}
		p.ends = append(p.ends, e)
	}
	return p, nil
}

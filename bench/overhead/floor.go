package overhead

import (
	"context"
	"io"
	"net"
	"time"

	"downbeat.dev/core/wire"
)

// The floor's hops: caller → hop → hop → caller, as a request's frames go frontend → scheduler →
// backend → frontend. Where the input is fetched over TCP, it costs a round trip more, which the
// floor leaves out: it is a lower bound for every provider.

// hopBytes is what each hop carries: as much as a result; a Submit and an Execute of one item are
// about as large.
const hopBytes = wire.ResultHeaderBytes + outputBytes

// hop accepts one connection, and passes each message that it reads on to next.
func hop(next string) (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	to, err := net.DialTimeout("tcp", next, patience)
	if err != nil {
		return "", err
	}
	go func() {
		from, err := ln.Accept()
		if err != nil {
			return
		}
		msg := make([]byte, hopBytes)
		for {
			if _, err := io.ReadFull(from, msg); err != nil {
				return
			}
			if _, err := to.Write(msg); err != nil {
				return
			}
		}
	}()
	return ln.Addr().String(), nil
}

// floor starts the hops and returns one closed-loop message around them.
func (c Config) floor(ctx context.Context, kids *children) (func() error, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer ln.Close()
	last, err := kids.start(ctx, c.Child, "-serve", "hop", "-scheduler", ln.Addr().String())
	if err != nil {
		return nil, err
	}
	first, err := kids.start(ctx, c.Child, "-serve", "hop", "-scheduler", last)
	if err != nil {
		return nil, err
	}
	if err := ln.(*net.TCPListener).SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	back, err := ln.Accept()
	if err != nil {
		return nil, err
	}
	to, err := net.DialTimeout("tcp", first, patience)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { back.Close(); to.Close() })
	buf := make([]byte, hopBytes)
	return func() error {
		if _, err := to.Write(buf); err != nil {
			return err
		}
		_, err := io.ReadFull(back, buf)
		return err
	}, nil
}

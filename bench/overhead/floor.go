package overhead

import (
	"context"
	"fmt"
	"io"
	"net"
	"time"

	"downbeat.dev/core/wire"
)

// The hops of the floor, which is a ping-pong: caller → hop → hop → caller, as a request's frames go frontend →
// scheduler → backend → frontend. If the input is fetched over TCP, the last hop fetches as many bytes from the
// caller before it answers; shared memory needs no message for that.

// hopBytes is the size of each hop's message, that of a result. A Submit and an Execute of one item have about this
// size.
const hopBytes = wire.ResultHeaderBytes + outputBytes

// runHop accepts one connection, and forwards each message to next after fetching fetch bytes from there.
func runHop(next string, fetch int) (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}

	// Dial the next hop first: the address is announced only when the way behind it is open.
	to, err := net.DialTimeout("tcp", next, patience)
	if err != nil {
		return "", err
	}

	go func() {
		from, err := ln.Accept()
		if err != nil {
			return
		}

		msg, fetched := make([]byte, hopBytes), make([]byte, fetch)
		for {
			if _, err := io.ReadFull(from, msg); err != nil {
				return
			}
			if _, err := to.Write(msg); err != nil {
				return
			}

			// Before the last hop, the message waits for the payload that it describes, as a batch does.
			if fetch == 0 {
				continue
			}
			if _, err := io.ReadFull(to, fetched); err != nil {
				return
			}
			if _, err := to.Write(msg); err != nil {
				return
			}
		}
	}()
	return ln.Addr().String(), nil
}

// startFloor starts the hops and returns a function that sends one message around them and waits.
func (c Config) startFloor(ctx context.Context, kids *children, fetch int) (func() error, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer ln.Close()

	last, err := kids.startChild(ctx, c.Child, "-serve", "hop", "-scheduler", ln.Addr().String(), "-bytes", fmt.Sprint(fetch))
	if err != nil {
		return nil, err
	}
	first, err := kids.startChild(ctx, c.Child, "-serve", "hop", "-scheduler", last, "-bytes", "0")
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

	buf, input := make([]byte, hopBytes), make([]byte, fetch)
	return func() error {
		if _, err := to.Write(buf); err != nil {
			return err
		}
		// The caller is both ends of the data plane: it sends the input when the last hop asks for it.
		if fetch > 0 {
			if _, err := io.ReadFull(back, buf); err != nil {
				return err
			}
			if _, err := back.Write(input); err != nil {
				return err
			}
		}
		_, err := io.ReadFull(back, buf)
		return err
	}, nil
}

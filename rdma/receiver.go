package rdma

import (
	"fmt"

	"downbeat.dev/rdma/stream"
)

// receiver is the reading side of a conn: it reads frames and acts on each. It belongs to the reading goroutine.
type receiver struct {
	conn   *conn
	frames *stream.Reader // calls TakeFrame, TakeMessage and Calling
}

// takeIn reads what the socket has, up to the limit of one peer's turn. The frames that this end sends in response
// leave together, at the end.
func (r *receiver) takeIn(buf []byte) error {
	r.conn.out.cork()
	err := r.frames.TakeIn(buf)
	if ended := r.conn.out.uncork(); err == nil {
		err = ended
	}
	return err
}

// readTLS is the goroutine that reads a TLS peer.
func (r *receiver) readTLS() {
	c := r.conn
	n := c.peer.node
	buf := make([]byte, tlsBuffer)
	for {
		if err := r.frames.ReadTLS(c.socket.tls, buf, n.enterCallbacks); err != nil {
			c.socket.loop.removeConn(c)
			c.dropLink(fmt.Errorf("%w: read: %w", ErrPeerLost, err))
			n.leaveCallbacks()
			return
		}

		c.out.flushQueued()
		n.leaveCallbacks()
	}
}

const tlsBuffer = 64 << 10

// Calling records that the reader is about to call back.
func (r *receiver) Calling() { r.conn.socket.noteCall() }

// TakeMessage delivers a message in order.
func (r *receiver) TakeMessage(number uint64, msg []byte) error {
	return r.conn.inbox.deliverMessage(number, msg)
}

// TakeFrame acts on a frame other than a message or an answer. body is valid during the call.
func (r *receiver) TakeFrame(f stream.Frame, body []byte) error {
	c := r.conn
	switch f.Kind {
	case stream.KindRead:
		return r.serveRead(f, body)
	case stream.KindEcho:
		f.Kind = stream.KindEchoed
		c.out.sendFrame(f)
		return nil
	case stream.KindEchoed:
		return c.keepalive.takeEchoed(f)
	case stream.KindTaken:
		return c.outbox.freeTaken(f.ID)

	// Direct ways are arranged over the stream.
	case stream.KindSegment:
		return r.giveKeyed(f.ID)
	case stream.KindGranted:
		g, err := stream.ParseGranted(body)
		if err != nil {
			return err
		}
		return (*c.direct.Load()).granted(g)
	case stream.KindVerbs:
		return c.upgrade.setUp(body)
	}
	return fmt.Errorf("%w: frame kind %d not expected here", ErrProtocol, f.Kind)
}

// serveRead answers a READ frame.
func (r *receiver) serveRead(f stream.Frame, body []byte) error {
	// The size of the answer is checked before anything is looked up.
	total, small := uint64(0), 0
	for i := range int(f.Count) {
		length := stream.ParseRemote(body[i*stream.RemoteBytes:]).Length
		total += uint64(length)
		if length <= stream.CopyMax {
			small += int(length)
		}
	}
	if total > stream.ChainBytesMax {
		return fmt.Errorf("%w: chain of %d bytes, %d allowed", ErrTooLarge, total, stream.ChainBytesMax)
	}
	return r.conn.out.answerRead(r.conn.peer.node.pool, f, body, small)
}

// giveKeyed answers a KindSegment: a peer that knows a live key of a segment may read the segment directly, if the
// link supports that. Otherwise there is no answer, and the peer continues over the byte stream.
func (r *receiver) giveKeyed(key uint64) error {
	// From now on the buffers of a segment that may be READ over verbs pass through quarantine.
	peer := r.conn.peer
	d := *r.conn.direct.Load()
	seg := peer.node.pool.Give(key, d.name() == "verbs")
	if seg == nil {
		return nil
	}
	if err := d.giveSegment(seg, key); err != nil {
		peer.node.cfg.Logger.Info("segment not granted", "peer", peer.addr, "err", err)
	}
	return nil
}

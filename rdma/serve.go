package rdma

import (
	"fmt"
	"time"

	"downbeat.dev/rdma/memory"
	"downbeat.dev/rdma/stream"
)

// TakeFrame acts on a frame other than a message or an answer. body is valid during the call.
func (c *conn) TakeFrame(f stream.Frame, body []byte) error {
	switch f.Kind {
	case stream.KindRead:
		return c.serveRead(f, body)
	case stream.KindEcho:
		f.Kind = stream.KindEchoed
		c.control(f)
		return nil
	case stream.KindEchoed:
		return c.echoed(f)
	case stream.KindTaken:
		return c.outbox.taken(f.ID)

	// What goes around the stream is arranged over it.
	case stream.KindSegment:
		return c.giveKeyed(f.ID)
	case stream.KindGranted:
		g, err := stream.ParseGranted(body)
		if err != nil {
			return err
		}
		return (*c.direct.Load()).granted(g)
	case stream.KindVerbs:
		return c.setUp(body)
	}
	return fmt.Errorf("%w: frame kind %d not expected here", ErrProtocol, f.Kind)
}

// TakeMessage hands a message on in its turn.
func (c *conn) TakeMessage(number uint64, msg []byte) error {
	return c.inbox.deliverMessage(number, msg)
}

func (c *conn) echoed(f stream.Frame) error {
	if !c.echo.takeAnswer(f.ID) {
		return fmt.Errorf("%w: answer to no echo", ErrProtocol)
	}
	now := c.peer.node.now()
	c.peer.echoes.addDelay(now, now-time.Duration(f.ID))
	return nil
}

// serveRead answers a READ frame: statuses, then the offered bytes, by reference.
func (c *conn) serveRead(f stream.Frame, body []byte) error {
	n := int(f.Count)

	// What the peer will be sent is bounded before anything is looked up.
	total, small := uint64(0), 0
	for i := range n {
		length := stream.ParseRemote(body[i*stream.RemoteBytes:]).Length
		total += uint64(length)
		if length <= stream.CopyMax {
			small += int(length)
		}
	}
	if total > stream.ChainBytesMax {
		return fmt.Errorf("%w: chain of %d bytes, %d allowed", ErrTooLarge, total, stream.ChainBytesMax)
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.roomFor(n, small); err != nil {
		return err
	}

	// The header comes first with room for the statuses; its length is known once every key has been looked up.
	head := c.out.Reserve(stream.HeaderBytes + n)
	sent := uint32(n)
	for i := range n {
		r := stream.ParseRemote(body[i*stream.RemoteBytes:])
		pin, ok := c.peer.node.pool.Find(r)
		if !ok {
			head[stream.HeaderBytes+i] = stream.StatusNotOffered
			continue
		}
		head[stream.HeaderBytes+i] = stream.StatusOK
		sent += r.Length
		c.out.Refer(pin.Bytes(r), pin)
	}

	stream.Frame{Body: sent, Kind: stream.KindData, Count: f.Count, ID: f.ID}.Append(head[:0])
	return nil
}

// roomFor refuses a peer that asks for more than it takes: reads, or bytes of answers that are copied. c.mu is held.
func (c *conn) roomFor(reads, small int) error {
	if c.out.Runs()+reads > stream.ReadsMax {
		return fmt.Errorf("%w: more than %d reads asked and not taken", ErrTooLarge, stream.ReadsMax)
	}

	if owned := c.out.Owned(); owned+small > stream.OwnedMax {
		return fmt.Errorf("%w: %d bytes of short reads asked, %d bytes not taken", ErrTooLarge, small, owned)
	}
	return nil
}

// giveKeyed answers a KindSegment: whoever holds a live key of a segment may read the segment directly, if the link can
// carry that. Otherwise there is no answer, and the peer goes on by the byte stream.
func (c *conn) giveKeyed(key uint64) error {
	// A segment that may be READ over verbs has its buffers pass quarantine from now on.
	d := *c.direct.Load()
	seg := c.peer.node.pool.Give(key, d.name() == "verbs")
	if seg == nil {
		return nil
	}
	if err := d.giveSegment(seg, key); err != nil {
		c.peer.node.cfg.Logger.Info("segment not granted", "peer", c.peer.addr, "err", err)
	}
	return nil
}

// sendGranted queues the right to read a segment; the descriptor of file, if that is not nil, goes with it.
func (c *conn) sendGranted(g stream.Granted, key uint64, file *memory.Segment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.out.Err() != nil {
		return
	}
	if c.out.Runs() > stream.ReadsMax {
		c.out.Fail(fmt.Errorf("%w: more than %d answers not taken", ErrTooLarge, stream.ReadsMax))
		return
	}
	c.out.Own(g.Append(make([]byte, 0, stream.HeaderBytes+stream.GrantedBytes), key), file)
	c.out.Flush()
}

package rdma

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"downbeat.dev/rdma/stream"
)

// TestAnnouncedMessages shows that long announced messages arrive whole, once and in order, between short ones, and
// that nothing of them remains at either end. Verbs announce long messages anyway; for the other providers the test
// turns it on.
func TestAnnouncedMessages(t *testing.T) {
	forAll(t, func(t *testing.T, c Config) {
		if c.Providers[0] == "local" {
			t.Skip("one process")
		}
		const n = 80
		size := func(i int) int { return 8 + []int{0, 300 << 10, 16<<10 - 16, 16 << 10, 5, 20 << 10, 1 << 20}[i%7] }
		var next atomic.Uint32
		oc := c
		oc.Receive = func(from *Peer, msg []byte) {
			i := int(next.Load())
			want := make([]byte, size(i))
			fill(want[4:], i)
			binary.LittleEndian.PutUint32(want, uint32(i))
			if !bytes.Equal(msg, want) {
				t.Errorf("message %d of %d bytes, want %d of %d", binary.LittleEndian.Uint32(msg), len(msg), i, len(want))
			}
			next.Add(1)
		}
		reader, owner := open(t, c), open(t, oc)
		reader.announce.Store(true)
		owner.announce.Store(true)
		p := connect(t, reader, owner.Addr())
		for i := range n {
			msg := make([]byte, size(i))
			fill(msg[4:], i)
			binary.LittleEndian.PutUint32(msg, uint32(i))
			for err := p.Send(msg[:5], msg[5:]); err != nil; err = p.Send(msg) {
				if !errors.Is(err, ErrNoMemory) {
					t.Fatal(err)
				}
				time.Sleep(time.Millisecond)
			}
		}
		until(t, "all messages came", func() bool { return next.Load() == n })
		until(t, "nothing is left", func() bool {
			return reader.Stats().BuffersLive == 0 && owner.Stats().BuffersLive == 0 && reader.Stats().OffersLive == 0
		})
	})
}

// until waits for a condition.
func until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not so within 20 s: %s", what)
		}
	}
}

// TestAnnouncedMessagesOfALostPeer shows that a peer that leaves while announced messages are on their way leaves
// nothing behind.
func TestAnnouncedMessagesOfALostPeer(t *testing.T) {
	forAll(t, func(t *testing.T, c Config) {
		if c.Providers[0] == "local" {
			t.Skip("one process")
		}
		reader, owner := open(t, c), open(t, c)
		reader.announce.Store(true)
		owner.announce.Store(true)
		p := connect(t, reader, owner.Addr())
		msg := make([]byte, 1<<20)
		for range 40 {
			if err := p.Send(msg); err != nil {
				break
			}
		}
		p.Close()
		until(t, "nothing is left", func() bool {
			return reader.Stats().BuffersLive == 0 && owner.Stats().BuffersLive == 0 && len(owner.Stats().Peers) == 0
		})
	})
}

func TestAnnouncementsThatLie(t *testing.T) {
	announce := func(number uint64, r Remote) []byte {
		return stream.AppendRemote(stream.Frame{Body: stream.RemoteBytes, Kind: stream.KindMessage, ID: number | announced}.Append(nil), r)
	}
	for name, b := range map[string][]byte{
		"too large":      announce(0, remoteOf(5, 0, MessageMax+1)),
		"empty":          announce(0, remoteOf(5, 0, 0)),
		"not a Remote":   append(stream.Frame{Body: 3, Kind: stream.KindMessage, ID: announced}.Append(nil), "abc"...),
		"taken unasked":  stream.Frame{Kind: stream.KindTaken, ID: 3}.Append(nil),
		"more than fits": append(announce(0, remoteOf(5, 0, MessageMax)), append(announce(1, remoteOf(6, 0, MessageMax)), announce(2, remoteOf(7, 0, MessageMax))...)...),
	} {
		t.Run(name, func(t *testing.T) {
			n, good := tcpNode(t, Config{})
			n.announce.Store(true)
			s := raw(t, n)
			s.Write(b)
			cutOff(t, s)
			good()
			until(t, "nothing is left", func() bool { return n.Stats().BuffersLive == 1 })
		})
	}
	t.Run("not offered", func(t *testing.T) {
		ready := make(chan struct{})
		p := connectTo(t, func(s net.Conn) {
			<-ready
			s.Write(announce(0, remoteOf(5, 0, 100)))
			var b [stream.HeaderBytes + stream.RemoteBytes]byte
			for {
				if _, err := s.Read(b[:]); err != nil {
					return
				}
				s.Write(append(stream.Frame{Body: 1, Kind: stream.KindData, Count: 1, ID: 1}.Append(nil), stream.StatusNotOffered))
			}
		}, time.Second)
		p.node.announce.Store(true)
		close(ready)
		<-p.gone
		until(t, "nothing is left", func() bool { return p.node.Stats().BuffersLive == 0 })
	})
}

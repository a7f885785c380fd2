package rdma

import (
	"net"
	"testing"

	"downbeat.dev/rdma/stream"
)

// TestShortReadsThatNobodyTakesAreBounded shows that a peer that requests many short pieces and takes none makes the
// node copy no more than a bound, and is then disconnected.
func TestShortReadsThatNobodyTakesAreBounded(t *testing.T) {
	n, good := tcpNode(t, Config{})
	b := alloc(t, n, stream.CopyMax)
	r := b.Offer()
	t.Cleanup(b.Free)
	s := raw(t, n)
	s.(*net.TCPConn).SetReadBuffer(4096)
	ask := stream.Frame{Body: stream.RemoteBytes * ChainMax, Kind: stream.KindRead, Count: ChainMax, ID: 1}.Append(nil)
	for range ChainMax {
		ask = stream.AppendRemote(ask, r)
	}

	// Enough for twice the bound; the node closes the stream earlier.
	asked := 0
	for ; asked < 2*stream.OwnedMax/(ChainMax*stream.CopyMax); asked++ {
		if _, err := s.Write(ask); err != nil {
			break
		}
		n.mu.Lock()
		for p := range n.peers {
			connOf(p).out.mu.Lock()
			if owned := connOf(p).out.frames.Owned(); owned > stream.OwnedMax+ChainMax+stream.HeaderBytes {
				t.Errorf("%d bytes are queued for a peer, %d are allowed", owned, stream.OwnedMax)
			}
			connOf(p).out.mu.Unlock()
		}
		n.mu.Unlock()
	}

	// The end of the stream comes after the bytes in the sockets, which take long to pass through a small one.
	until(t, "the peer is cut", func() bool { return len(n.Stats().Peers) == 1 })
	good()
}

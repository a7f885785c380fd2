package rdma

import (
	"net"
	"testing"

	"downbeat.dev/rdma/stream"
)

// A peer that asks for many short pieces and takes none makes the node copy no more than a bound; then it is cut.
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

	// As many as would take twice the bound; the node closes the stream before.
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

	// Its end of the stream stands behind what the sockets hold, which takes long to come through a small one.
	until(t, "the peer is cut", func() bool { return len(n.Stats().Peers) == 1 })
	good()
}

package rdma

import (
	"net"
	"testing"

	"downbeat.dev/rdma/stream"
)

// TestWhoHasMostWaitingGivesWay shows that peers that take nothing of what they request share one bound. The peer
// with the most data gives way, and peers with little stay.
func TestWhoHasMostWaitingGivesWay(t *testing.T) {
	n, good := tcpNode(t, Config{owedMax: 16 << 20})
	b := alloc(t, n, stream.CopyMax)
	t.Cleanup(b.Free)
	r := b.Offer()

	// One chain requests 2 MiB of short answers, which are copied.
	chain := stream.Frame{Body: stream.RemoteBytes * ChainMax, Kind: stream.KindRead, Count: ChainMax, ID: 1}.Append(nil)
	for range ChainMax {
		chain = stream.AppendRemote(chain, r)
	}
	ask := func(s net.Conn, chains int) {
		t.Helper()
		s.(*net.TCPConn).SetReadBuffer(4096)
		for range chains {
			if _, err := s.Write(chain); err != nil {
				return // it was disconnected
			}
		}
	}
	owed := func() (all []int) {
		n.mu.Lock()
		defer n.mu.Unlock()
		for p := range n.peers {
			all = append(all, p.link.owed())
		}
		return all
	}

	for range 3 {
		ask(raw(t, n), 1)
	}
	until(t, "the modest peers are there, and one that is good", func() bool { return len(owed()) == 4 })
	greedy := raw(t, n)
	until(t, "the greedy peer is there", func() bool { return len(owed()) == 5 })
	ask(greedy, 64)
	until(t, "the greedy peer is cut", func() bool { return len(owed()) == 4 })
	total := 0
	for _, bytes := range owed() {
		total += bytes
	}
	if total > 16<<20 {
		t.Errorf("%d bytes wait for peers, %d are allowed", total, 16<<20)
	}
	good()
}

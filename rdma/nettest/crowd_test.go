package nettest

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"downbeat.dev/rdma"
)

// crowdEnv makes this process open connections: address, number, and the bytes that each sends.
const crowdEnv = "DOWNBEAT_NETTEST_CROWD"

type crowd struct {
	To   string
	Many int
	Says string
}

// crowded is the report of a crowd.
type crowded struct{ Opened, Refused int }

// beCrowd opens many connections, reports their number, and holds them until stdin ends.
func beCrowd(text string) error {
	var c crowd
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return err
	}
	lim.Cur = lim.Max
	unix.Setrlimit(unix.RLIMIT_NOFILE, &lim)
	var got crowded
	var all []net.Conn
	for range c.Many {
		s, err := net.DialTimeout("tcp", c.To, 5*time.Second)
		if err != nil {
			got.Refused++
			continue
		}
		s.Write([]byte(c.Says))
		all = append(all, s)
		got.Opened++
	}
	if err := tell(got); err != nil {
		return err
	}
	_, err := bytes.NewBuffer(nil).ReadFrom(os.Stdin)
	for _, s := range all {
		s.Close()
	}
	return err
}

// TestNetTenThousandConnections: one host opens ten thousand connections that are silent or send nonsense. The limits
// hold, present peers continue, and new ones get in after the crowd has been turned away.
func TestNetTenThousandConnections(t *testing.T) {
	for name, says := range map[string]string{"silent": "", "nonsense": strings.Repeat("x", 200)} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			if p.kind != "namespaces" {
				t.Skip("it concerns TCP alone")
			}
			h := p.newHost(t, p.stall)
			c := config(p.here, "tcp", p.stall)
			n, err := rdma.Open(c)
			if err != nil {
				t.Fatal(err)
			}
			b, err := n.Alloc(bytesPer)
			if err != nil {
				t.Fatal(err)
			}
			for i := range b.Bytes() {
				b.Bytes()[i] = pattern(i)
			}
			offer := b.Offer()
			t.Cleanup(func() {
				b.Free()
				if err := n.Close(); err != nil {
					t.Error(err)
				}
			})
			m := p.newReader(t, p.stall)
			good, other := m.connect(t, n.Addr()), m.connect(t, h.Addr)
			before := descriptors()
			hostport, _, _ := strings.Cut(n.Addr(), "#")
			text, _ := json.Marshal(crowd{To: hostport, Many: 10_000, Says: says})
			mob := p.start(t, []string{crowdEnv + "=" + string(text)}, "")
			most := 0
			for told := false; !told; most = max(most, descriptors()-before) {
				for peer, r := range map[*rdma.Peer]rdma.Remote{good: offer, other: h.Remote} {
					if err := m.read(t, peer, r); err != nil {
						t.Fatalf("a good peer was harmed: %v", err)
					}
				}
				told = strings.Contains(mob.text(), "{")
			}
			t.Logf("%s; at most %d descriptors of ours", mob.line(t, "{"), most)
			if most > 128+64 { // greetingMax handshakes, and some that are being closed
				t.Errorf("%d connections were open at a time", most)
			}
			mob.in.Close()
			late := p.newReader(t, p.stall)
			for end := time.Now().Add(p.patience); ; time.Sleep(20 * time.Millisecond) {
				peer, err := late.reach(n.Addr())
				if err == nil {
					if err := late.read(t, peer, offer); err != nil {
						t.Error(err)
					}
					peer.Close()
					break
				}
				if time.Now().After(end) {
					t.Fatalf("nobody gets in any more: %v", err)
				}
			}
			good.Close()
			other.Close()
			h.end(t)
		})
	}
}

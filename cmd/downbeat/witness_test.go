//go:build linux

package main

import (
	"context"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"downbeat.dev/core/control"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/internal/sicklink"
	"downbeat.dev/rdma"
)

// witness is a backend of one GPU in the test's process that answers at once and notes which scheduler each batch came from. It
// knows by the batches' numbers, which no two schedulers share: a relay before each scheduler reads what passes.
type witness struct {
	t     *testing.T
	paths []*sicklink.Link // by scheduler
	link  control.BackendLink
	ready chan struct{} // closed when link is set
	node  *rdma.Node
	wait  sync.WaitGroup

	mu     sync.Mutex
	from   map[uint64]int    // by batch: the scheduler whose relay it passed
	orders []int             // the schedulers whose batches were accepted, without repetitions in a row
	addrs  map[uint32]string // of frontends
}

// openWitness connects a witness to schedulers, each over a path of its own.
func openWitness(t *testing.T, schedulers []string) *witness {
	t.Helper()
	w := &witness{t: t, ready: make(chan struct{}), from: map[uint64]int{}, addrs: map[uint32]string{}}
	var err error
	if w.node, err = rdma.Open(rdma.Config{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.node.Close() })

	var addrs []string
	for i, addr := range schedulers {
		path := sicklink.Open(t, addr)
		w.paths = append(w.paths, path)
		addrs = append(addrs, w.relayNoting(i, path.Addr()))
	}

	// What the repository's model takes and gives.
	echo := model.Info{Name: "echo", Version: "1", Platform: "emulated", SLO: time.Second.Nanoseconds(), BatchMax: 8,
		Inputs:  []model.Tensor{{Name: "x", Datatype: "FP32", Shape: []int64{4}}},
		Outputs: []model.Tensor{{Name: "y", Datatype: "FP32", Shape: []int64{4}}}}
	hello := wire.BackendHello{Name: "witness", GPUs: []string{"gpu0"}, Models: []wire.BackendModel{{Info: echo, Profile: slices.Repeat([]time.Duration{2 * time.Millisecond}, 8)}}}
	w.link, err = control.DialBackend(t.Context(), control.DialOptions{Addr: strings.Join(addrs, ","), Patient: true}, hello, w)
	if err != nil {
		t.Fatal(err)
	}
	close(w.ready)
	t.Cleanup(func() { w.link.Close(); w.wait.Wait() })
	return w
}

// relayNoting passes connections on to a scheduler, and notes which batches come back.
func (w *witness) relayNoting(scheduler int, to string) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			go func() { _, _ = io.Copy(out, in); out.Close() }()
			go func() { w.passFrames(scheduler, in, out); in.Close(); out.Close() }()
		}
	}()
	return ln.Addr().String()
}

// passFrames passes on what a scheduler sends, and notes each batch before its last byte goes on.
func (w *witness) passFrames(scheduler int, to io.Writer, from io.Reader) {
	r := wire.NewReader(&tap{from: from, to: to})
	for {
		f, err := r.Next()
		if err != nil {
			return
		}
		if f.Type != wire.TypeExecute {
			continue
		}
		all, err := wire.DecodeExecutes(nil, f)
		if err != nil {
			return
		}

		w.mu.Lock()
		for _, x := range all {
			w.from[x.Batch] = scheduler
		}
		w.mu.Unlock()
	}
}

// tap passes bytes on once whoever reads them wants more: the frames that they complete have been looked at by then.
type tap struct {
	from io.Reader
	to   io.Writer
	kept []byte
}

func (t *tap) Read(b []byte) (int, error) {
	if _, err := t.to.Write(t.kept); err != nil {
		return 0, err
	}
	n, err := t.from.Read(b)
	t.kept = append(t.kept[:0], b[:n]...)
	return n, err
}

// Execute notes whose batches are accepted, and answers them.
func (w *witness) Execute(all []wire.Execute) {
	<-w.ready
	for _, x := range all {
		w.mu.Lock()
		s, known := w.from[x.Batch]
		if !known {
			s = -1
		}
		if n := len(w.orders); n == 0 || w.orders[n-1] != s {
			w.orders = append(w.orders, s)
		}
		items := slices.Clone(x.Items)
		w.mu.Unlock()
		w.wait.Go(func() { w.answer(x.Batch, x.GPU, items) })
	}
}

func (w *witness) answer(batch uint64, gpu uint32, items []wire.Item) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for _, it := range items {
		w.mu.Lock()
		addr := w.addrs[it.Frontend]
		w.mu.Unlock()
		if p, err := w.node.Connect(ctx, addr); err == nil {
			_ = p.Send(wire.ResultHeader{ID: it.ID, Output: 16, Exec: 1e6}.Append(nil), make([]byte, 16))
		}
	}
	_ = w.link.Done([]wire.Done{{Batch: batch, GPU: gpu, Exec: 1e6}})
}

func (w *witness) Peers(all []wire.Peer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range all {
		if p.Node == 0 {
			w.addrs[p.Frontend] = p.DataAddr
		}
	}
}

func (w *witness) Place([]wire.Placement)      {}
func (w *witness) Command([]wire.ModelCommand) {}
func (w *witness) Spare([]wire.SpareStart)     {}
func (w *witness) Link(bool, error)            {}

// obeyed returns the schedulers whose batches were accepted, one after the other.
func (w *witness) obeyed() []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.orders)
}

// leaders returns who has led, epoch by epoch. A second one in an epoch is an error.
func (s *schedulers) leaders() (all []int) {
	s.t.Helper()
	led := s.ledEpochs()
	for i, x := range led {
		if i > 0 && led[i-1].epoch == x.epoch {
			s.t.Errorf("schedulers %d and %d lead in epoch %d", led[i-1].scheduler, x.scheduler, x.epoch)
		}
		all = append(all, x.scheduler)
	}
	return all
}

// isPartOf tells whether a witness obeyed one leader after the other, in the order of their epochs, leaving out those that it never had
// a batch of.
func isPartOf(obeyed, leaders []int) bool {
	for _, o := range obeyed {
		at := slices.Index(leaders, o)
		if at < 0 {
			return false
		}
		leaders = leaders[at+1:]
	}
	return true
}

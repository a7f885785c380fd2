//go:build linux

package main

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"downbeat.dev/frontend"
	"downbeat.dev/internal/etcdtest"
	"downbeat.dev/internal/sicklink"
)

// divided is a cluster of scheduler processes over such a store, three witnesses and a client in the test's process, with a path of its own between any
// two that can be cut in either direction.
type divided struct {
	*schedulers
	stores    []*sicklink.Link // by scheduler: to the store
	clients   []*sicklink.Link // by scheduler: from the client
	witnesses []*witness
	client    *frontend.Client
}

func startDivided(t *testing.T, store electionStore) *divided {
	t.Helper()
	d := &divided{schedulers: newSchedulers(t, store, 3)}
	for i := range d.addrs {
		d.stores = append(d.stores, sicklink.Open(t, store.address))
		d.startOver(i, d.stores[i].Addr())
	}

	for range 3 {
		d.witnesses = append(d.witnesses, openWitness(t, d.addrs))
	}
	var told []string
	for _, addr := range d.addrs {
		d.clients = append(d.clients, sicklink.Open(t, addr))
		told = append(told, d.clients[len(d.clients)-1].Addr())
	}
	d.client = dialProcess(t, frontend.Options{Scheduler: strings.Join(told, ",")})
	return d
}

// A direction of a path between a scheduler and its peers.
const (
	fromPeers = 1 << iota // to the scheduler
	toPeers
	bothWays = fromPeers | toPeers
)

func setPath(l *sicklink.Link, dark int) {
	in, out := sicklink.Well, sicklink.Well
	if dark&fromPeers != 0 {
		in = sicklink.Dark
	}
	if dark&toPeers != 0 {
		out = sicklink.Dark
	}
	l.Set(in, out)
}

// backendPaths are those between a scheduler and the witnesses.
func (d *divided) backendPaths(scheduler int) (all []*sicklink.Link) {
	for _, w := range d.witnesses {
		all = append(all, w.paths[scheduler])
	}
	return all
}

// cut is something that befalls the scheduler that leads.
type cut struct {
	name      string
	paths     func(leader int) []*sicklink.Link
	dark      int
	stop      bool // the process is stopped instead
	succeeded bool // another one leads then
}

func (d *divided) cutsOfLeaders() []cut {
	store := func(l int) []*sicklink.Link { return d.stores[l : l+1] }
	client := func(l int) []*sicklink.Link { return d.clients[l : l+1] }
	oneBackend := func(l int) []*sicklink.Link { return d.backendPaths(l)[:1] }
	all := func(l int) []*sicklink.Link { return append(d.backendPaths(l), d.stores[l], d.clients[l]) }

	return []cut{
		{name: "from the store", paths: store, dark: bothWays},
		{name: "from backends", paths: d.backendPaths, dark: bothWays, succeeded: true},
		{name: "backends do not hear it", paths: d.backendPaths, dark: toPeers, succeeded: true},
		{name: "it does not hear backends", paths: d.backendPaths, dark: fromPeers, succeeded: true},
		{name: "from one backend of three", paths: oneBackend, dark: bothWays},
		{name: "from frontends", paths: client, dark: bothWays},
		{name: "frontends do not hear it", paths: client, dark: toPeers},
		{name: "it does not hear frontends", paths: client, dark: fromPeers},
		{name: "from all", paths: all, dark: bothWays, succeeded: true},
		{name: "stopped for 5 s", stop: true, succeeded: true},
		{name: "the store from all", paths: func(int) []*sicklink.Link { return d.stores }, dark: bothWays},
	}
}

// TestOneLeaderWhateverIsCut: the leader is cut off from the election's store, from backends, from frontends, in both directions and in one, is
// stopped for 5 s, and all lose the store, which is an etcd or a Lease. At every moment the backends obey one leader, that of the highest epoch that they know of; who is cut off from them is
// succeeded, and who is cut off from anybody else is not; and of the requests, which outlast all of it, each is answered.
func TestOneLeaderWhateverIsCut(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	t.Run("etcd", func(t *testing.T) {
		leadWhateverIsCut(t, startDivided(t, etcdStore(t, etcdtest.Address(etcdtest.Open(t)))))
	})
	t.Run("kubernetes", func(t *testing.T) { leadWhateverIsCut(t, startDivided(t, leaseStore(t))) })
}

func leadWhateverIsCut(t *testing.T, d *divided) {
	t.Helper()
	f := startFlow(d.client, 5*time.Millisecond, 30*time.Second)

	for _, x := range d.cutsOfLeaders() {
		// Peers whose host is short of processors lose a leader by themselves now and then. One that is succeeded for the cut is so
		// each time.
		for tries := 3; !d.cutLeader(x); tries-- {
			if tries == 1 {
				t.Errorf("%s: the leader was succeeded each time", x.name)
				break
			}
		}
	}

	time.Sleep(time.Second)
	served, failed := f.end()
	if len(failed) > 0 || served < 1000 {
		t.Errorf("%d served, %d lost, the first: %v", served, len(failed), failed[:min(1, len(failed))])
	}
	leaders := d.leaders()
	for i, w := range d.witnesses {
		obeyed := w.obeyed()
		if len(obeyed) < 2 || slices.Contains(obeyed, -1) || !isPartOf(obeyed, leaders) {
			t.Errorf("witness %d obeyed %v, one after the other; leaders were %v, epoch by epoch", i, obeyed, leaders)
		}
	}
	t.Logf("%d served, leaders were %v; witnesses obeyed %v, %v, %v", served, leaders, d.witnesses[0].obeyed(), d.witnesses[1].obeyed(), d.witnesses[2].obeyed())
}

// cutLeader has something befall the leader, until it is well again. It reports false if another scheduler led then that should not.
func (d *divided) cutLeader(x cut) bool {
	d.t.Helper()
	time.Sleep(time.Second) // so that all are connected again, and standbys hear from the backends
	old := d.awaitLeader(-1)
	before := d.standsBy(old)
	began := time.Now()
	if x.stop {
		d.all[old].cmd.Process.Signal(syscall.SIGSTOP)
	} else {
		for _, l := range x.paths(old) {
			setPath(l, x.dark)
		}
	}

	if x.succeeded {
		next := d.awaitLeader(old)
		d.t.Logf("%s: scheduler %d is succeeded by %d after %v", x.name, old, next, time.Since(began).Round(10*time.Millisecond))
	}
	if x.stop {
		time.Sleep(time.Until(began.Add(5 * time.Second)))
		d.all[old].cmd.Process.Signal(syscall.SIGCONT)
	} else {
		time.Sleep(2 * time.Second)
		for _, l := range x.paths(old) {
			setPath(l, 0)
		}
	}

	kept := d.leader() == old
	if x.succeeded {
		waitFor(d.t, func() bool { return d.standsBy(old) > before })
	}
	waitFor(d.t, d.client.Connected)
	if !x.succeeded && !kept {
		d.t.Logf("%s: scheduler %d succeeded %d", x.name, d.leader(), old)
	}
	return x.succeeded || kept
}

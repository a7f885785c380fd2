//go:build linux

package main

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"downbeat.dev/frontend"
	"downbeat.dev/internal/etcdtest"
)

// schedulers are the scheduler processes of one cluster.
type schedulers struct {
	t     *testing.T
	store electionStore
	addrs []string
	all   []*process
}

// newSchedulers are schedulers that have not been started.
func newSchedulers(t *testing.T, store electionStore, n int) *schedulers {
	t.Helper()
	s := &schedulers{t: t, store: store, all: make([]*process, n)}
	for range n {
		s.addrs = append(s.addrs, freeAddress(t))
	}
	return s
}

func startSchedulers(t *testing.T, store electionStore, n int) *schedulers {
	t.Helper()
	s := newSchedulers(t, store, n)
	for i := range s.addrs {
		s.start(i)
	}
	return s
}

// list is what peers are told.
func (s *schedulers) list() string { return strings.Join(s.addrs, ",") }

func (s *schedulers) start(i int) { s.startOver(i, s.store.address) }

// startOver starts a scheduler that reaches the store at an address: its own, or a path to it.
func (s *schedulers) startOver(i int, address string) {
	s.t.Helper()
	s.all[i] = s.store.startScheduler(address, "scheduler", "-listen", s.addrs[i], "-scheduler", s.list(), "-metrics", "")
}

// ledEpoch is an epoch and a scheduler that has said that it leads in it.
type ledEpoch struct{ epoch, scheduler int }

var leadsIn = regexp.MustCompile(`this scheduler leads".* epoch=(\d+)`)

// ledEpochs are those of all schedulers, epoch by epoch.
func (s *schedulers) ledEpochs() (all []ledEpoch) {
	for i, p := range s.all {
		for _, m := range leadsIn.FindAllStringSubmatch(p.log.String(), -1) {
			epoch, _ := strconv.Atoi(m[1]) // digits
			all = append(all, ledEpoch{epoch, i})
		}
	}
	slices.SortStableFunc(all, func(a, b ledEpoch) int { return a.epoch - b.epoch })
	return all
}

// leader is the process that has led last; -1: none.
func (s *schedulers) leader() int {
	all := s.ledEpochs()
	if len(all) == 0 {
		return -1
	}
	return all[len(all)-1].scheduler
}

// standsBy tells how often a scheduler has heard that another one leads.
func (s *schedulers) standsBy(i int) int {
	return strings.Count(s.all[i].log.String(), "another scheduler leads")
}

// awaitLeader waits until another scheduler than before leads; -1: any. What a process does is in its log a little later.
func (s *schedulers) awaitLeader(before int) int {
	s.t.Helper()
	waitFor(s.t, func() bool { l := s.leader(); return l >= 0 && l != before })
	return s.leader()
}

// TestStandbyTakesOver: with a leader that is killed, told to stop, or stopped for a while, no request is
// lost whose budget outlasts the change, over etcd, over a file and over a Lease; and with etcd gone all goes on.
func TestStandbyTakesOver(t *testing.T) {
	etcd := etcdtest.Open(t)
	for name, open := range map[string]func(*testing.T) electionStore{
		"etcd":       func(t *testing.T) electionStore { return etcdStore(t, etcdtest.Address(etcd)) },
		"file":       fileStore,
		"kubernetes": leaseStore,
	} {
		t.Run(name, func(t *testing.T) {
			s := startSchedulers(t, open(t), 3)
			models := repository(t)
			for range 2 {
				startProcess(t, "", "backend", "-scheduler", s.list(), "-models", models, "-emulate", "1")
			}
			c := dialProcess(t, frontend.Options{Scheduler: s.list()})
			f := startFlow(c, 5*time.Millisecond, 20*time.Second)

			for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGSTOP} {
				time.Sleep(500 * time.Millisecond) // so that standbys hear from the backends
				old, began := s.awaitLeader(-1), time.Now()
				stoodBy := s.standsBy(old)
				if sig == syscall.SIGSTOP {
					s.all[old].cmd.Process.Signal(sig)
				} else {
					s.all[old].end(sig)
				}
				next := s.awaitLeader(old)
				t.Logf("%v: scheduler %d is succeeded by %d after %v", sig, old, next, time.Since(began).Round(10*time.Millisecond))
				waitFor(t, c.Connected)
				if sig == syscall.SIGSTOP {
					time.Sleep(2 * time.Second)
					s.all[old].cmd.Process.Signal(syscall.SIGCONT)
					waitFor(t, func() bool { return s.standsBy(old) > stoodBy })
				} else {
					s.start(old)
				}
			}

			if name == "etcd" {
				etcd.Close()
				time.Sleep(2 * time.Second)
			}
			served, failed := f.end()
			if len(failed) > 0 || served < 200 {
				t.Errorf("%d served, %d lost, the first: %v", served, len(failed), failed[:min(1, len(failed))])
			}
			t.Logf("%d served, %d lost", served, len(failed))
		})
	}
}

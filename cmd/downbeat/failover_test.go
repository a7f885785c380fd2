//go:build linux

package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"downbeat.dev/frontend"
	"downbeat.dev/internal/etcdtest"
)

// schedulers are the scheduler processes of one cluster.
type schedulers struct {
	t        *testing.T
	election string
	addrs    []string
	all      []*process
}

func startSchedulers(t *testing.T, election string, n int) *schedulers {
	t.Helper()
	s := &schedulers{t: t, election: election}
	for range n {
		s.addrs = append(s.addrs, freeAddress(t))
		s.all = append(s.all, nil)
	}
	for i := range s.addrs {
		s.start(i)
	}
	return s
}

// list is what peers are told.
func (s *schedulers) list() string { return strings.Join(s.addrs, ",") }

func (s *schedulers) start(i int) {
	s.t.Helper()
	s.all[i] = startProcess(s.t, "", "scheduler", "-listen", s.addrs[i], "-scheduler", s.list(), "-election", s.election, "-metrics", "")
}

// leader is the process that has said last that it leads; -1: none.
func (s *schedulers) leader() int {
	leader, highest := -1, 0
	for i, p := range s.all {
		if at := strings.LastIndex(p.log.String(), "this scheduler leads"); at >= 0 {
			epoch := 0
			if _, err := fmt.Sscanf(p.log.String()[at:], "this scheduler leads\" epoch=%d", &epoch); err == nil && epoch > highest {
				leader, highest = i, epoch
			}
		}
	}
	return leader
}

// awaitLeader waits until another scheduler than before leads.
func (s *schedulers) awaitLeader(before int) int {
	s.t.Helper()
	waitFor(s.t, func() bool { l := s.leader(); return l >= 0 && l != before })
	return s.leader()
}

// TestStandbyTakesOver: with a leader that is killed, told to stop, or stopped for a while, no request is
// lost whose budget outlasts the change, over etcd and over a file; and with etcd gone all goes on.
func TestStandbyTakesOver(t *testing.T) {
	etcd := etcdtest.Open(t)
	for name, election := range map[string]string{
		"etcd": "etcd://" + etcd.Clients[0].Addr().String() + "/test",
		"file": "file://" + filepath.Join(t.TempDir(), "leader"),
	} {
		t.Run(name, func(t *testing.T) {
			s := startSchedulers(t, election, 3)
			models := repository(t)
			for range 2 {
				startProcess(t, "", "backend", "-scheduler", s.list(), "-models", models, "-emulate", "1")
			}
			c := dialProcess(t, frontend.Options{Scheduler: s.list()})
			f := startFlow(c, 5*time.Millisecond, 20*time.Second)

			for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGSTOP} {
				time.Sleep(500 * time.Millisecond) // so that standbys hear from the backends
				old := s.leader()
				if sig == syscall.SIGSTOP {
					s.all[old].cmd.Process.Signal(sig)
				} else {
					s.all[old].end(sig)
				}
				s.awaitLeader(old)
				waitFor(t, c.Connected)
				if sig == syscall.SIGSTOP {
					time.Sleep(2 * time.Second)
					s.all[old].cmd.Process.Signal(syscall.SIGCONT)
					waitFor(t, func() bool { return strings.Contains(s.all[old].log.String(), "another scheduler leads") })
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

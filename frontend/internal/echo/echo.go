// Package echo is a scheduler and a backend in one, for tests of frontends. It reads each input over the real data
// plane and answers with a function of the input. A test can make it refuse requests, withhold answers, lose the session
// and send answers that no request asked for. It keeps no deadlines and forms no batches.
package echo

import (
	"context"
	"errors"
	"sync"

	"downbeat.dev/core/control"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/rdma"
)

// Answer makes the output of an input, or a reason why there is none.
type Answer func(s wire.Submit, in []byte) ([]byte, model.Reason)

// System is one frontend's scheduler and backend. Its methods may be called by any goroutine.
type System struct {
	Addr string // of the scheduler, for frontend.Options

	node   *rdma.Node
	models []model.Info
	forget func() error // gives Addr up

	mu       sync.Mutex // guards what follows
	answer   Answer
	events   control.FrontendEvents
	addr     string // the frontend's data plane
	peer     *rdma.Peer
	up       bool
	held     bool
	waiting  []wire.Submit
	submits  int
	refused  int
	canceled []uint64
	running  sync.WaitGroup
}

// New returns a system that serves the models with answer.
func New(models []model.Info, answer Answer) (*System, error) {
	node, err := rdma.Open(rdma.Config{})
	if err != nil {
		return nil, err
	}
	s := &System{node: node, models: models, answer: answer}
	s.Addr, s.forget = control.ListenInProcess(s.Open, nil)
	return s, nil
}

// Open opens a frontend's session, as a scheduler in the process does.
func (s *System) Open(hello wire.FrontendHello, ev control.FrontendEvents) (control.FrontendLink, error) {
	peer, err := s.node.Connect(context.Background(), hello.DataAddr)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.events, s.addr, s.peer, s.up = ev, hello.DataAddr, peer, true
	s.mu.Unlock()
	ev.Link(true, nil)
	ev.Models(s.models)
	return link{s}, nil
}

// Close waits for the answers under way and closes the data plane.
func (s *System) Close() error {
	s.running.Wait()
	return errors.Join(s.forget(), s.node.Close())
}

// Lose cuts the session and forgets the requests that it withholds.
func (s *System) Lose() {
	s.mu.Lock()
	s.up, s.waiting = false, nil
	s.mu.Unlock()
	s.events.Link(false, errors.New("cut by the test"))
}

// Return opens the session again, if it is cut, and announces models.
func (s *System) Return(models []model.Info) {
	s.mu.Lock()
	was := s.up
	s.up = true
	s.mu.Unlock()
	if !was {
		s.events.Link(true, nil)
	}
	s.events.Models(models)
}

// Hold withholds the answers of requests that are submitted from now on, until Serve.
func (s *System) Hold() {
	s.mu.Lock()
	s.held = true
	s.mu.Unlock()
}

// Serve answers the withheld requests, and later ones at once.
func (s *System) Serve() {
	s.mu.Lock()
	all := s.waiting
	s.waiting, s.held = nil, false
	s.mu.Unlock()
	for _, m := range all {
		s.serve(m)
	}
}

// Waiting returns the withheld requests.
func (s *System) Waiting() []wire.Submit {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]wire.Submit(nil), s.waiting...)
}

// Submits returns how many requests were submitted in all.
func (s *System) Submits() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.submits
}

// Refused counts the inputs that could not be read.
func (s *System) Refused() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refused
}

// Canceled lists the requests that the frontend withdrew.
func (s *System) Canceled() []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]uint64(nil), s.canceled...)
}

// Send sends an output for any id, asked for or not. Like a backend it connects anew where the frontend was
// lost, and never hears that the frontend has ended.
func (s *System) Send(id uint64, out []byte) error {
	peer, err := s.connected()
	if err != nil {
		return err
	}
	h := wire.ResultHeader{ID: id, Output: uint32(len(out)), Exec: 1000, Staged: true, Stages: wire.Stages{Fetch: 3000, Wait: 2000, Reply: 1000}}
	return peer.Send(h.Append(nil), out)
}

// connected returns the frontend as a peer that is not known to be lost.
func (s *System) connected() (*rdma.Peer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.peer.Err() == nil {
		return s.peer, nil
	}
	peer, err := s.node.Connect(context.Background(), s.addr)
	if err == nil {
		s.peer = peer
	}
	return peer, err
}

// Outcome ends any request, submitted or not.
func (s *System) Outcome(id uint64, reason model.Reason) {
	s.events.Outcomes([]wire.Outcome{{ID: id, Reason: reason}})
}

type link struct{ s *System }

func (l link) Submit(all []wire.Submit) error {
	s := l.s
	s.mu.Lock()
	if !s.up {
		s.mu.Unlock()
		return control.ErrUnavailable
	}

	s.submits += len(all)
	held := s.held
	if held {
		s.waiting = append(s.waiting, all...)
	}
	s.mu.Unlock()

	if !held {
		for _, m := range all {
			s.serve(m)
		}
	}
	return nil
}

func (l link) Cancel(c wire.Cancel) error {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.s.canceled = append(l.s.canceled, c.ID)
	return nil
}

// Command is answered as backends of the mode none would.
func (l link) Command(c wire.ModelCommand) error {
	l.s.events.Answers([]wire.ModelAnswer{{Number: c.Number, Code: wire.CommandRefused, Text: "echo: models are not controlled"}})
	return nil
}

func (l link) Close() error { return nil }

// serve reads one input and answers it.
func (s *System) serve(m wire.Submit) {
	s.running.Add(1)
	b, err := s.node.Alloc(int(max(m.Input.Length, 1)))
	if err != nil {
		s.running.Done()
		s.Outcome(m.ID, model.InputUnavailable)
		return
	}

	in := b.Bytes()[:m.Input.Length]
	src := rdma.Remote(m.Input)
	s.peer.Read([]rdma.Read{{Dst: in, Src: src}}, func(err error) {
		go func() { // done must not block, Send may
			defer s.running.Done()
			defer b.Free()
			if err != nil {
				s.Outcome(m.ID, model.InputUnavailable)
				s.mu.Lock()
				s.refused++
				s.mu.Unlock()
				return
			}

			s.mu.Lock()
			answer := s.answer
			s.mu.Unlock()
			out, reason := answer(m, in)
			if reason != model.ReasonNone {
				s.Outcome(m.ID, reason)
				return
			}
			_ = s.Send(m.ID, out)
		}()
	})
}

package control

import (
	"testing"
	"time"

	"downbeat.dev/core/engine"
	"downbeat.dev/core/wire"
)

// echo is a backend that records each batch and reports it as done.
type echo struct {
	runner
	got chan struct{}
}

func (e *echo) Execute(m []wire.Execute) {
	<-e.linked
	e.dones = e.dones[:0]
	for _, x := range m {
		e.dones = append(e.dones, wire.Done{Batch: x.Batch, GPU: x.GPU})
	}
	e.got <- struct{}{}
	e.link.Done(e.dones)
}

// BenchmarkSubmitToExecute measures the path of one request from a frontend's Submit through the scheduler to a
// backend's Execute. The model's largest batch is one, so nothing is deferred.
func BenchmarkSubmitToExecute(b *testing.B) {
	for name, local := range map[string]bool{"tcp": false, "process": true} {
		b.Run(name, func(b *testing.B) {
			e, err := engine.New(engine.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer e.Close()
			s := NewServer(e, ServerOptions{})
			defer s.Close()
			ln, err := Listen("127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			go s.Serve(ln)
			x := &echo{runner: *newRunner(nil), got: make(chan struct{}, 1)}
			c := newCaller()
			h := backendHello("m")
			h.Models[0].Profile = []time.Duration{1}
			var back BackendLink
			var front FrontendLink
			o := DialOptions{Addr: ln.Addr().String()}
			if local {
				back, _ = s.Backend(h, x)
				x.set(back)
				front, _ = s.Frontend(wire.FrontendHello{}, c)
			} else {
				back, err = DialBackend(b.Context(), o, h, x)
				if err != nil {
					b.Fatal(err)
				}
				x.set(back)
				front, _ = DialFrontend(b.Context(), o, wire.FrontendHello{}, c)
			}
			defer back.Close()
			defer front.Close()
			m := []wire.Submit{{Budget: 1e9}}
			b.ReportAllocs()
			for b.Loop() {
				m[0].ID++
				front.Submit(m)
				<-x.got
			}
		})
	}
}

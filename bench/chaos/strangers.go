//go:build linux

package chaos

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// strangerExperiments open connections without a token (finding F).
func strangerExperiments() []Experiment {
	return []Experiment{
		{Name: "strangers-on-the-data-port", Promise: "silent connections keep no backend from a frontend", Run: silentData},
		{Name: "strangers-5000-on-each-port", Promise: "silent connections do not affect the others and are closed", Run: silentEverywhere},
		{Name: "strangers-talk-garbage", Promise: "garbage on any port does not affect the others", Run: garbage},
		{Name: "descriptors-64", Promise: "without free descriptors, sessions stay and waiting parts connect later", Run: fewDescriptors},
	}
}

// crowd is a set of connections that are held open, and reopened after a close if they are stubborn.
type crowd struct {
	stop    chan struct{}
	done    sync.WaitGroup
	open    atomic.Int64
	opened  atomic.Int64
	address string
}

// startCrowd holds n connections to an address. says returns the first bytes of each. Stubborn ones reconnect.
func startCrowd(address string, n int, stubborn bool, says func() []byte) *crowd {
	c := &crowd{stop: make(chan struct{}), address: address}
	for range n {
		c.done.Go(func() {
			for c.holdConnection(says()); stubborn; c.holdConnection(says()) {
				select {
				case <-c.stop:
					return
				case <-time.After(500 * time.Millisecond):
				}
			}
		})
	}
	return c
}

// holdConnection holds one connection until the other end or the crowd closes it.
func (c *crowd) holdConnection(says []byte) {
	s, err := net.DialTimeout("tcp", c.address, 5*time.Second)
	if err != nil {
		return
	}
	defer s.Close()

	c.open.Add(1)
	c.opened.Add(1)
	defer c.open.Add(-1)

	_, _ = s.Write(says) // it may be closed already

	// A read blocks until the other end or Close closes the connection.
	ended := make(chan struct{})
	go func() {
		select {
		case <-c.stop:
			s.Close()
		case <-ended:
		}
	}()

	buf := make([]byte, 512)
	for err == nil {
		_, err = s.Read(buf)
	}
	close(ended)
}

func (c *crowd) endCrowd() {
	close(c.stop)
	c.done.Wait()
}

func silence() []byte { return nil }

// raiseDescriptors raises this process's limit of descriptors.
func raiseDescriptors() {
	// The default soft limit of 1,024 descriptors is too small for a crowd; root may raise it to the hard limit.
	var limit unix.Rlimit
	check(unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	limit.Cur = limit.Max
	check(unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
}

// silentData restarts a backend while 300 reconnecting strangers hold the frontend's data port.
func silentData(w *World) Observation {
	m := light(64)
	models := w.Repository("models", m)
	w.StartSchedulers(1)
	backend := w.StartBackends(1, models)[0]
	c := w.StartCaller(0, Load{m, 150, 100 * time.Millisecond})

	// The strangers come first, so that the backend's dial finds the port crowded.
	mob := startCrowd(net.JoinHostPort(w.address(c.host), dataPort), 300, true, silence)
	defer mob.endCrowd()
	time.Sleep(time.Second)

	backend.kill()
	w.StartBackend(0, models)
	from := now()
	time.Sleep(4 * time.Second)

	fallSilent(200*time.Millisecond, c)
	var o Observation
	o.Measures = []Measure{atMost("back after the backend, ms", toMilliseconds(o.recovered(c, from)), 2500),
		atLeast("good % from 1 s after it", c.between(from+int64(time.Second), now()).Percent(), 98),
		atLeast("strangers' connections", float64(mob.opened.Load()), 300)}
	return o
}

// silentEverywhere holds 5,000 silent connections, 1,000 to each of five ports.
func silentEverywhere(w *World) Observation {
	raiseDescriptors()

	m := light(64)
	w.StartSchedulers(1)
	w.StartBackends(2, w.Repository("models", m))
	c := w.StartCaller(0, Load{m, 200, 100 * time.Millisecond})
	w.startGateway()

	var mobs []*crowd
	for _, a := range []string{w.lists[0], w.port(backendHost, dataPort), w.port(c.host, dataPort), w.port(gatewayHost, httpPort), w.port(gatewayHost, grpcPort)} {
		mobs = append(mobs, startCrowd(a, 1000, false, silence))
		time.Sleep(500 * time.Millisecond)
	}
	from := now() // the load of the handshakes themselves does not count
	time.Sleep(12 * time.Second)

	fallSilent(200*time.Millisecond, c)
	var o Observation
	o.Measures = []Measure{atLeast("good %", c.between(from, now()).Percent(), 98)}

	// A port closes silent connections; a crowd that is still there shows a missing limit.
	for i, mob := range mobs {
		o.Measures = append(o.Measures, atMost([]string{"session", "backend", "frontend", "REST", "gRPC"}[i]+" still open", float64(mob.open.Load()), 0))
		mob.endCrowd()
	}
	return o
}

// garbage sends random bytes to all ports.
func garbage(w *World) Observation {
	m := light(64)
	w.StartSchedulers(1)
	w.StartBackends(2, w.Repository("models", m))
	c := w.StartCaller(0, Load{m, 200, 100 * time.Millisecond})
	w.startGateway()

	noise := func() []byte {
		b := make([]byte, 300)
		for i := range b {
			b[i] = byte(rand.Uint32())
		}
		return b
	}

	from := now()
	for _, a := range []string{w.lists[0], w.port(backendHost, dataPort), w.port(c.host, dataPort), w.port(gatewayHost, httpPort), w.port(gatewayHost, grpcPort)} {
		mob := startCrowd(a, 300, false, noise)
		time.Sleep(time.Second)
		mob.endCrowd()
	}

	fallSilent(200*time.Millisecond, c)
	return Observation{Measures: []Measure{atLeast("good %", c.between(from, now()).Percent(), 98)}}
}

// fewDescriptors gives every part 64 descriptors, and holds 200 connections to two of them for 5 s.
func fewDescriptors(w *World) Observation {
	m := light(64)
	models := w.Repository("models", m)
	w.addHost(schedulerHost)
	w.lists = []string{w.port(schedulerHost, sessionPort)}
	scheduler := w.startLimited(schedulerHost, 64, "scheduler 0", "scheduler", "-listen", w.lists[0], "-metrics", "")
	check(scheduler.awaitLine("scheduler listens", patience))

	w.StartBackends(2, models)
	c := w.StartCaller(0, Load{m, 200, 100 * time.Millisecond})
	mob := startCrowd(w.lists[0], 200, true, silence)

	// The crowd takes all free descriptors of the scheduler; existing sessions must not suffer.
	from := now()
	time.Sleep(3 * time.Second)

	// A backend that starts now must wait until the crowd goes.
	w.addHost(backendHost + 2)
	late := w.startBackend(2, models)
	time.Sleep(2 * time.Second)
	mob.endCrowd()
	check(late.awaitLine("scheduler connected", patience))

	fallSilent(200*time.Millisecond, c)
	said := strings.Count(scheduler.log.String(), "\n")
	return Observation{Measures: []Measure{atLeast("good %", c.between(from, now()).Percent(), 98), atMost("lines in the scheduler's log", float64(said), 60)}}
}

// gatewayHost is the gateway's host.
const gatewayHost = 60

func (w *World) startGateway() *process {
	w.addHost(gatewayHost)
	p := w.startPart(gatewayHost, "gateway", "gateway", "-scheduler", w.schedulers(), "-data", w.port(gatewayHost, dataPort), "-provider", "tcp",
		"-http", w.port(gatewayHost, httpPort), "-grpc", w.port(gatewayHost, grpcPort))

	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		status, _, err := w.get(gatewayHost, httpPort, "/v2/health/ready")
		if status == 200 {
			return p
		}
		if time.Now().After(end) || !p.running() {
			check(fmt.Errorf("the gateway is not ready: %d, %w\n%s", status, err, lastLines(p.log.String(), 5)))
		}
	}
}

// port returns the address of a port on a host.
func (w *World) port(host int, port string) string { return net.JoinHostPort(w.address(host), port) }

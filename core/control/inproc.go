package control

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"downbeat.dev/core/wire"
)

// OpenFrontend opens a frontend's session within this process, as Server.Frontend does.
type OpenFrontend func(wire.FrontendHello, FrontendEvents) (FrontendLink, error)

// OpenBackend opens a backend's session within this process, as Server.Backend does.
type OpenBackend func(wire.BackendHello, BackendEvents) (BackendLink, error)

// inprocPrefix starts the addresses of schedulers of this process; no host:port starts so.
const inprocPrefix = "inproc://"

// inproc holds the schedulers of this process that have an address. Like a host's ports, there is one set for all.
var inproc struct {
	mu    sync.Mutex
	last  int                // guarded by mu
	named map[string]openers // guarded by mu
}

var errNoBackends = errors.New("control: this scheduler takes no backends")

// openers open the sessions of one scheduler.
type openers struct {
	frontend OpenFrontend
	backend  OpenBackend
}

// ListenInProcess gives a scheduler an address that DialFrontend and DialBackend accept within this process until
// close is called. So frontends and backends locate any scheduler by an address, wherever it runs, and need no type
// of this package. A scheduler that takes no backends passes no opener for them.
func ListenInProcess(front OpenFrontend, back OpenBackend) (addr string, close func() error) {
	if back == nil {
		back = func(wire.BackendHello, BackendEvents) (BackendLink, error) { return nil, errNoBackends }
	}

	inproc.mu.Lock()
	defer inproc.mu.Unlock()
	if inproc.named == nil {
		inproc.named = map[string]openers{}
	}

	// Numbers are never reused: an old address must not lead to another scheduler.
	inproc.last++
	addr = fmt.Sprint(inprocPrefix, inproc.last)
	inproc.named[addr] = openers{front, back}

	return addr, func() error {
		inproc.mu.Lock()
		defer inproc.mu.Unlock()
		delete(inproc.named, addr)
		return nil
	}
}

// findInProcess returns the scheduler of an address. Empty openers without an error mean that it runs in another
// process.
func findInProcess(addr string) (o openers, err error) {
	if !strings.HasPrefix(addr, inprocPrefix) {
		return o, nil
	}
	inproc.mu.Lock()
	defer inproc.mu.Unlock()
	o, known := inproc.named[addr]
	if !known {
		err = fmt.Errorf("scheduler %.100q: no scheduler of this process has that address", addr)
	}
	return o, err
}

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

// inprocPrefix begins the addresses of schedulers of this process; no host:port does.
const inprocPrefix = "inproc://"

// inproc holds the schedulers of this process that have an address: like the ports of a host, one set for all.
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

// ListenInProcess gives a scheduler an address, which DialFrontend and DialBackend take within this process until close is
// called. So frontends and backends are told of every scheduler by its address, wherever it runs, and need no type of this
// package. A scheduler that takes no backends has no opener for them.
func ListenInProcess(front OpenFrontend, back OpenBackend) (addr string, close func() error) {
	if back == nil {
		back = func(wire.BackendHello, BackendEvents) (BackendLink, error) { return nil, errNoBackends }
	}

	inproc.mu.Lock()
	defer inproc.mu.Unlock()
	if inproc.named == nil {
		inproc.named = map[string]openers{}
	}

	// Numbers are never used again: who kept an address finds nobody, not somebody else.
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

// findInProcess returns the scheduler of an address. Nothing without an error: it is another process's.
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

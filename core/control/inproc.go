package control

import (
	"fmt"
	"strings"
	"sync"

	"downbeat.dev/core/wire"
)

// OpenFrontend opens a frontend's session within this process, as Server.Frontend does.
type OpenFrontend func(wire.FrontendHello, FrontendEvents) (FrontendLink, error)

// inprocPrefix begins the addresses of schedulers of this process; no host:port does.
const inprocPrefix = "inproc://"

// inproc holds the schedulers of this process that have an address: like the ports of a host, one set for all.
var inproc struct {
	mu    sync.Mutex
	last  int                     // guarded by mu
	named map[string]OpenFrontend // guarded by mu
}

// ListenInProcess gives a scheduler an address, which DialFrontend takes within this process until close is called. So a
// frontend is told of every scheduler by its address, wherever it runs, and needs no type of this package.
func ListenInProcess(open OpenFrontend) (addr string, close func() error) {
	inproc.mu.Lock()
	defer inproc.mu.Unlock()
	if inproc.named == nil {
		inproc.named = map[string]OpenFrontend{}
	}

	// Numbers are never used again: who kept an address finds nobody, not somebody else.
	inproc.last++
	addr = fmt.Sprint(inprocPrefix, inproc.last)
	inproc.named[addr] = open

	return addr, func() error {
		inproc.mu.Lock()
		defer inproc.mu.Unlock()
		delete(inproc.named, addr)
		return nil
	}
}

// findInProcess returns the scheduler of an address; nil without an error: it is another process's.
func findInProcess(addr string) (OpenFrontend, error) {
	if !strings.HasPrefix(addr, inprocPrefix) {
		return nil, nil
	}
	inproc.mu.Lock()
	defer inproc.mu.Unlock()
	if open := inproc.named[addr]; open != nil {
		return open, nil
	}
	return nil, fmt.Errorf("scheduler %.100q: no scheduler of this process has that address", addr)
}

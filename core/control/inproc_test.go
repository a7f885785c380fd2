package control

import (
	"errors"
	"strings"
	"testing"

	"downbeat.dev/core/wire"
)

// TestAddressesWithinTheProcess shows that each address leads to its own scheduler until it is given up, and to no
// other afterwards.
func TestAddressesWithinTheProcess(t *testing.T) {
	var called []string
	listen := func(name string) (string, func() error) {
		return ListenInProcess(func(wire.FrontendHello, FrontendEvents) (FrontendLink, error) {
			called = append(called, name)
			return nil, nil
		}, func(wire.BackendHello, BackendEvents) (BackendLink, error) {
			called = append(called, name+"'s backends")
			return nil, nil
		})
	}
	dial := func(addr string) error {
		_, err := DialFrontend(ctx(t), DialOptions{Addr: addr}, wire.FrontendHello{}, newCaller())
		return err
	}

	first, forgetFirst := listen("first")
	second, forgetSecond := listen("second")
	for _, addr := range []string{second, first} {
		if err := dial(addr); err != nil {
			t.Errorf("%s: %v", addr, err)
		}
	}
	if _, err := DialBackend(ctx(t), DialOptions{Addr: second}, wire.BackendHello{}, nil); err != nil {
		t.Error(err)
	}
	if got := strings.Join(called, " "); got != "second first second's backends" {
		t.Errorf("called: %s, want each scheduler by its own address", got)
	}
	alone, forget := ListenInProcess(nil, nil)
	defer forget()
	if _, err := DialBackend(ctx(t), DialOptions{Addr: alone}, wire.BackendHello{}, nil); !errors.Is(err, errNoBackends) {
		t.Errorf("a backend where none is taken: %v", err)
	}

	if err := forgetFirst(); err != nil {
		t.Error(err)
	}
	third, forgetThird := listen("third")
	for _, addr := range []string{first, "inproc://", "inproc://nobody"} {
		if err := dial(addr); err == nil || !strings.Contains(err.Error(), addr) {
			t.Errorf("%s: %v, want an error that names the address", addr, err)
		}
	}
	if third == first || third == second {
		t.Errorf("%s is an address of the past", third)
	}
	_, _ = forgetSecond(), forgetThird()
}

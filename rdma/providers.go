package rdma

import (
	"errors"
	"fmt"
	"slices"

	"downbeat.dev/rdma/memory"
)

// provider is a way to reach nodes.
type provider interface {
	// available reports whether this host has it.
	available() Availability
	// reach connects n to the node at an address. After ErrNotSupported or ErrPeerLost another provider may try.
	reach(n *Node, to address) (*Peer, error)
}

// providers are all there are, by name.
var providers = map[string]provider{"local": localProvider{}, "shm": shmProvider{}, "verbs": verbsProvider{}, "tcp": tcpProvider{}}

// providerOrder is the default preference, best first. Within one host a copy beats the way through a network card.
var providerOrder = []string{"local", "shm", "verbs", "tcp"}

// Availability reports whether a provider can be used on this host, and the reason if not.
type Availability struct {
	Name   string
	OK     bool
	Reason string
}

// Providers returns the availability of all providers on this host, best first.
func Providers() []Availability {
	var all []Availability
	for _, name := range providerOrder {
		a := providers[name].available()
		a.Name = name
		all = append(all, a)
	}
	return all
}

// allowsProvider reports whether a node may use a provider. With TLS, verbs must be named explicitly, because they
// bypass the encryption.
func (n *Node) allowsProvider(name string) bool {
	if len(n.cfg.Providers) > 0 {
		return slices.Contains(n.cfg.Providers, name)
	}
	return name != "verbs" || n.cfg.TLS == nil
}

// providersInOrder returns the providers to try, best first.
func (n *Node) providersInOrder() []string {
	if len(n.cfg.Providers) > 0 {
		return n.cfg.Providers
	}
	return providerOrder
}

// connectByProviders tries the allowed providers in order. It skips providers that are not available; a peer that
// answers with a refusal ends the search.
func (n *Node) connectByProviders(text string) (*Peer, error) {
	to, err := parseAddress(text)
	if err != nil {
		return nil, err
	}

	var reasons []error
	for _, name := range n.providersInOrder() {
		if !n.allowsProvider(name) {
			continue
		}

		p, err := providers[name].reach(n, to)
		if err == nil {
			log := n.cfg.Logger.With("addr", text, "provider", p.Provider())
			if len(reasons) > 0 {
				log = log.With("why_not_better", errors.Join(reasons...))
			}
			log.Info("peer connected")
			return p, nil
		}

		// A wrong token or version is wrong over any provider.
		reasons = append(reasons, fmt.Errorf("%s: %w", name, err))
		if errors.Is(err, ErrAuth) || errors.Is(err, ErrVersion) || errors.Is(err, ErrClosed) || errors.Is(err, ErrTooLarge) {
			break
		}
	}

	if len(reasons) == 0 {
		return nil, fmt.Errorf("%w: no allowed provider reaches it", ErrNotSupported)
	}
	return nil, errors.Join(reasons...)
}

// localProvider joins nodes of one process.
type localProvider struct{}

func (localProvider) available() Availability {
	return Availability{OK: true, Reason: "between nodes of one process"}
}

func (localProvider) reach(n *Node, to address) (*Peer, error) {
	nodes.Lock()
	other := nodes.byID[to.id]
	nodes.Unlock()

	if !to.known || other == nil || !other.allowsProvider("local") {
		return nil, fmt.Errorf("%w: not in this process", ErrNotSupported)
	}
	// Within one process a token proves nothing, but a deployment with two tokens should fail everywhere alike.
	if other.cfg.Token != n.cfg.Token {
		return nil, fmt.Errorf("%w: the acceptor does not hold it", ErrAuth)
	}
	return joinNodes(n, other, to.text)
}

// shmProvider joins processes of one user on one host: each maps the other's memory.
type shmProvider struct{}

func (shmProvider) available() Availability {
	if err := memory.Sealable(); err != nil {
		return Availability{Reason: err.Error()}
	}
	return Availability{OK: true, Reason: "between processes of one user on one host"}
}

func (shmProvider) reach(n *Node, to address) (*Peer, error) {
	if !to.known {
		return nil, fmt.Errorf("%w: the address names no node", ErrNotSupported)
	}
	// An abstract socket is not visible from other hosts, so a successful dial proves that the host is the same.
	s, err := dialUnix(n.ctx, socketName(to.id))
	if err != nil {
		return nil, fmt.Errorf("%w: not on this host: %w", ErrNotSupported, err)
	}

	// Another user may be listening under the name and would see what is sent, so it is not greeted.
	if err := sameUser(s); err != nil {
		s.Close()
		return nil, fmt.Errorf("%w: %w", ErrNotSupported, err)
	}

	if _, err := n.runHandshake(s, &to.id); err != nil {
		return nil, err
	}
	c, err := n.adoptConnection(s, to.text, to.id, true)
	if err != nil {
		return nil, err
	}
	return c.peer, nil
}

// tcpProvider joins any two nodes, over TLS if the node has it configured.
type tcpProvider struct{}

func (tcpProvider) available() Availability {
	return Availability{OK: true, Reason: "always there"}
}

func (tcpProvider) reach(n *Node, to address) (*Peer, error) {
	c, err := n.connectTCP(to)
	if err != nil {
		return nil, err
	}
	return c.peer, nil
}

// verbsProvider joins nodes that have RDMA devices. It connects by TCP and moves reads to a queue pair. If tcp is
// allowed too, a peer that cannot have a pair stays a TCP peer.
type verbsProvider struct{}

func (verbsProvider) available() Availability { return verbsAvailable() }

func (verbsProvider) reach(n *Node, to address) (*Peer, error) {
	if n.verbs == nil {
		return nil, n.noVerbs
	}
	c, err := n.connectTCP(to)
	if err != nil {
		return nil, err
	}

	// The connection stays: it carries what verbs cannot, and takes over if the pair fails (decision 0022).
	err = c.upgrade.offerPair()
	if err != nil && n.allowsProvider("tcp") {
		n.cfg.Logger.Info("no verbs with a peer", "peer", to.text, "err", err)
		return c.peer, nil
	}
	if err != nil {
		c.peer.Close()
		return nil, err
	}
	return c.peer, nil
}

// connectTCP connects to a node by TCP.
func (n *Node) connectTCP(to address) (*conn, error) {
	s, id, err := n.dialTCP(to.hostport, to.wantedNode())
	if err != nil {
		return nil, err
	}
	return n.adoptConnection(s, to.text, id, true)
}

package deploy

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
)

// Cluster is the section that connects parts on several hosts.
type Cluster struct {
	Election string `yaml:"election"` // scheduler: where the cluster's schedulers elect a leader; empty: this one leads
	TLSName  string `yaml:"tls_name"` // a name in every part's certificate, which others check; empty: the host that they dial
	// Epoch is the interval at which the scheduler places models by demand; 0: only when an operator applies a plan.
	Epoch time.Duration `yaml:"epoch"`
	// SessionSpare is the number of backends that may be lost without evicting a session, as long as more remain.
	SessionSpare int `yaml:"session_spare"`
}

// ElectionURL returns where schedulers elect a leader; nil without an election.
func (c Cluster) ElectionURL() (*Election, error) {
	if c.Election == "" {
		return nil, nil
	}

	scheme, rest, _ := strings.Cut(c.Election, "://")
	switch scheme {
	case "file":
		// With two slashes, the first part of a path would be parsed as a host.
		u, err := url.Parse(c.Election)
		if err != nil || u.Host != "" || len(u.Path) < 2 {
			return nil, errors.New("want file:///PATH with an absolute path")
		}
		return &Election{Kind: scheme, Name: u.Path}, nil
	case "kubernetes":
		namespace, name, _ := strings.Cut(rest, "/")
		if namespace == "" || name == "" || strings.Contains(name, "/") {
			return nil, errors.New("want kubernetes://NAMESPACE/LEASE")
		}
		return &Election{Kind: scheme, Namespace: namespace, Name: name}, nil
	case "etcd", "etcds":
		hosts, name, _ := strings.Cut(rest, "/")
		e := &Election{Kind: scheme, Name: name}
		for host := range strings.SplitSeq(hosts, ",") {
			if err := checkAddress(host); err != nil {
				return nil, fmt.Errorf("%q: want host:port of each member of etcd", host)
			}
			e.Endpoints = append(e.Endpoints, host)
		}

		if name == "" {
			return nil, errors.New("want the cluster's name after the hosts, as in etcd://HOST:2379/NAME")
		}
		return e, nil
	}

	return nil, errors.New("want etcd://HOST:PORT,.../NAME, etcds://HOST:PORT,.../NAME, kubernetes://NAMESPACE/LEASE or file:///PATH")
}

// Election is the place where schedulers elect a leader.
type Election struct {
	Kind      string   // etcd, etcds (over TLS), kubernetes or file
	Endpoints []string // of etcd
	Namespace string   // of kubernetes
	Name      string   // the cluster's name, the lease's name, or a path
}

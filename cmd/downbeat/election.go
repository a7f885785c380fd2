//go:build linux

package main

import (
	"crypto/tls"
	"fmt"

	"downbeat.dev"
	"downbeat.dev/core/lead"
	"downbeat.dev/core/lead/etcd"
	"downbeat.dev/core/lead/hostfile"
	"downbeat.dev/core/lead/kubernetes"
	"downbeat.dev/deploy"
)

// openElection opens the store in which the cluster's schedulers elect their leader.
func openElection(e *deploy.Election, t *tls.Config) (lead.Store, error) {
	switch e.Kind {
	case "file":
		return hostfile.Open(e.Name)
	case "kubernetes":
		return kubernetes.Open(e.Namespace, e.Name)
	case "etcd":
		return etcd.Open(e.Endpoints, "downbeat/"+e.Name+"/leader", nil)
	}

	if t == nil {
		return nil, fmt.Errorf("election: etcds: tls is not set")
	}
	t = t.Clone()
	t.ServerName = "" // etcd's certificate has its own name
	return etcd.Open(e.Endpoints, "downbeat/"+e.Name+"/leader", t)
}

// joinElection opens the election if the configuration names one.
func joinElection(c *downbeat.Config) error {
	where, err := c.Cluster.ElectionURL()

	// Without an election this scheduler is the only one and leads.
	if err != nil || where == nil {
		return err
	}
	t, err := c.PeerTLS()
	if err != nil {
		return err
	}
	c.Election, err = openElection(where, t)
	return err
}

// Package etcdtest opens an etcd for a test, and for a measurement (etcdtest/serve).
package etcdtest

import (
	"errors"
	"net/url"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

// startMost is how long an etcd may take to start on a machine that is busy.
const startMost = 30 * time.Second

// Open starts an etcd of one member in this process, on a port of loopback that is free. It ends with the test, if the
// test has not closed it before.
func Open(t testing.TB) *embed.Etcd {
	t.Helper()
	e, err := Start(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		select {
		case <-e.Server.StopNotify(): // the test has closed it
		default:
			e.Close()
		}
	})
	return e
}

// Start starts an etcd of one member in this process, on a port of loopback that is free, and waits until it serves. Its
// data lies below dir.
func Start(dir string) (*embed.Etcd, error) {
	c := embed.NewConfig()
	c.Dir, c.LogLevel, c.TickMs, c.ElectionMs = dir, "fatal", 10, 100
	free := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{free}, []url.URL{free}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{free}, []url.URL{free}
	c.InitialCluster = c.InitialClusterFromName(c.Name)

	e, err := embed.StartEtcd(c)
	if err != nil {
		return nil, err
	}

	select {
	case <-e.Server.ReadyNotify():
		return e, nil
	case <-time.After(startMost):
		e.Close()
		return nil, errors.New("etcd does not start")
	}
}

// Address is where an etcd answers its clients.
func Address(e *embed.Etcd) string { return e.Clients[0].Addr().String() }

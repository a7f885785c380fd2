package deploy

import (
	"reflect"
	"strings"
	"testing"
)

func TestElectionURL(t *testing.T) {
	for text, want := range map[string]*Election{
		"":                                nil,
		"file:///run/downbeat/leader":     {Kind: "file", Name: "/run/downbeat/leader"},
		"etcd://a:2379,b:2379/production": {Kind: "etcd", Endpoints: []string{"a:2379", "b:2379"}, Name: "production"},
		"etcds://[::1]:2379/x":            {Kind: "etcds", Endpoints: []string{"[::1]:2379"}, Name: "x"},
		"kubernetes://prod/downbeat":      {Kind: "kubernetes", Namespace: "prod", Name: "downbeat"},
	} {
		if got, err := (Cluster{Election: text}).ElectionURL(); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for _, bad := range []string{"etcd", "etcd://a/x", "etcd://a:2379", "etcd://a:2379/", "etcd:///x", "file://relative", "file:///", "kubernetes://prod", "kubernetes://a/b/c", "zookeeper://a:1/x"} {
		c := Default()
		c.Cluster.Election = bad
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), "cluster.election") || !strings.Contains(err.Error(), "want ") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestSeveralSchedulers: each address is checked.
func TestSeveralSchedulers(t *testing.T) {
	c := Default()
	c.Scheduler = "a:7070, b:7070"
	if err := c.Check(); err != nil {
		t.Error(err)
	}
	c.Scheduler = "a:7070,b"
	if err := c.Check(); err == nil || !strings.Contains(err.Error(), `"b"`) {
		t.Errorf("%v", err)
	}
}

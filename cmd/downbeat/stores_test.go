//go:build linux

package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"downbeat.dev/internal/apiserver"
)

// electionStore is where the schedulers of a test agree on who leads.
type electionStore struct {
	address string
	// startScheduler starts a scheduler that reaches the store at an address.
	startScheduler func(at string, args ...string) *process
}

// etcdStore is an etcd at an address.
func etcdStore(t *testing.T, address string) electionStore {
	t.Helper()
	return electionStore{address, func(at string, args ...string) *process {
		return startProcess(t, "", append(args, "-election", "etcd://"+at+"/test")...)
	}}
}

// fileStore is a file, on one host.
func fileStore(t *testing.T) electionStore {
	t.Helper()
	return electionStore{filepath.Join(t.TempDir(), "leader"), func(at string, args ...string) *process {
		return startProcess(t, "", append(args, "-election", "file://"+at)...)
	}}
}

// leaseStore is a Lease on a kube-apiserver of the test's own; each scheduler is in a pod.
func leaseStore(t *testing.T) electionStore {
	t.Helper()
	server := apiserver.Start(t)
	if os.Geteuid() != 0 {
		t.Skip("mounts a service account, which root may")
	}
	return electionStore{strings.TrimPrefix(server.URL, "https://"), func(at string, args ...string) *process {
		return startPod(t, server, at, append(args, "-election", "kubernetes://default/test")...)
	}}
}

// accountVariable names the directory of a service account, for a test binary that is to be bin/downbeat in a pod.
const accountVariable = "DOWNBEAT_TEST_ACCOUNT"

// startPod runs this test's binary with a command line as in a pod: it finds a service account where the kubelet puts one, and the API server, or
// a path to it, at an address. Its mounts are its own.
func startPod(t *testing.T, server *apiserver.Server, address string, args ...string) *process {
	t.Helper()
	account := t.TempDir()
	if err := server.WriteAccount(account); err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}

	p := newProcess("", args...)
	p.cmd.Env = append(p.cmd.Env, accountVariable+"="+account, "KUBERNETES_SERVICE_HOST="+host, "KUBERNETES_SERVICE_PORT="+port)
	p.cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
	p.start(t)
	return p
}

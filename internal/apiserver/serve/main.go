//go:build linux

// Command serve runs a command as in a pod of a kube-apiserver that is there for it alone: `downbeat bench failover` over a Lease. It wants root, for
// mounts that are the command's own, and what `make apiserver` builds.
package main

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"syscall"

	"downbeat.dev/internal/apiserver"
	"downbeat.dev/internal/etcdtest"
)

// accountVariable names the directory of a service account, for this command where it is to become the other one.
const accountVariable = "DOWNBEAT_ACCOUNT"

func main() {
	run := serveCommand
	if os.Getenv(accountVariable) != "" {
		run = becomeCommand
	}
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: serve COMMAND ARGUMENT…")
		os.Exit(2)
	}
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// serveCommand starts a server and this program again, in mounts of its own.
func serveCommand(args []string) error {
	dir, err := os.MkdirTemp("", "apiserver")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	e, err := etcdtest.Start(dir)
	if err != nil {
		return err
	}
	defer e.Close()
	s, err := apiserver.Open(dir, etcdtest.Address(e))
	if err != nil {
		return err
	}
	defer s.Close()

	account, err := os.MkdirTemp("", "account")
	if err != nil {
		return err
	}
	defer os.RemoveAll(account)
	if err := s.WriteAccount(account); err != nil {
		return err
	}
	at, err := url.Parse(s.URL)
	if err != nil {
		return err
	}

	pod := exec.Command("/proc/self/exe", args...)
	pod.Stdout, pod.Stderr = os.Stdout, os.Stderr
	pod.Env = append(os.Environ(), accountVariable+"="+account, "KUBERNETES_SERVICE_HOST="+at.Hostname(), "KUBERNETES_SERVICE_PORT="+at.Port())
	pod.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	return pod.Run()
}

// becomeCommand finds its service account where pods do, and becomes the command.
func becomeCommand(args []string) error {
	if err := apiserver.MountAccount(os.Getenv(accountVariable)); err != nil {
		return err
	}
	path, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	return syscall.Exec(path, args, os.Environ())
}

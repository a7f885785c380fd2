// Command serve runs an etcd of one member until it is interrupted, for `downbeat bench failover -election`. It prints the
// address that clients use; its data ends with it.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"downbeat.dev/internal/etcdtest"
)

func main() {
	if err := serveUntilSignal(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serveUntilSignal() error {
	dir, err := os.MkdirTemp("", "etcd")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	e, err := etcdtest.Start(dir)
	if err != nil {
		return err
	}
	defer e.Close()
	fmt.Println(etcdtest.Address(e))

	// Whoever measures ends it by its process id.
	end := make(chan os.Signal, 1)
	signal.Notify(end, os.Interrupt, syscall.SIGTERM)
	<-end
	return nil
}

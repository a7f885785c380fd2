package rdma

import (
	"context"
	"net"

	"golang.org/x/sys/unix"
)

// Availability says whether a provider can be used on this host, and why not.
type Availability struct {
	Name   string
	OK     bool
	Reason string
}

// Providers says what this host offers, best first, and why not more.
func Providers() []Availability {
	return []Availability{
		{Name: "local", OK: true, Reason: "between nodes of one process"},
		verbsAvailable(),
		shmAvailable(),
		{Name: "tcp", OK: true, Reason: "always there"},
	}
}

func shmAvailable() Availability {
	a := Availability{Name: "shm"}
	fd, mem, err := mapMemfd(pageBytes, 0)
	if err != nil {
		a.Reason = err.Error()
		return a
	}
	unix.Munmap(mem)
	unix.Close(fd)
	a.OK, a.Reason = true, "between processes of one user on one host"
	return a
}

func dialUnix(ctx context.Context, name string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", name)
}

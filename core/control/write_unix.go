//go:build unix

package control

import "syscall"

// writeOnce writes as much as the socket takes now. The descriptor is in non-blocking mode.
func writeOnce(fd uintptr, b []byte) (int, error) { return syscall.Write(int(fd), b) }

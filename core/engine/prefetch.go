//go:build amd64 || arm64

package engine

import "unsafe"

// prefetch begins to load the cache lines of some words and does not wait for them. Any address is allowed, nil too. A Go
// statement can only read, and then the processor waits.
//
//go:noescape
func prefetch(words []unsafe.Pointer)

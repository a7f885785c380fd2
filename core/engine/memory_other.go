//go:build !linux

package engine

func hugePages[T any]([]T) {}

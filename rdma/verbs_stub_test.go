//go:build !rdma || !linux || !cgo

package rdma

func addVerbs(map[string]Config) {}

// registrations tells what a node has registered with its device.
func registrations(*Node) string { return "" }

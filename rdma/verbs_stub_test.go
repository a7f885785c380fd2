//go:build !rdma || !linux || !cgo

package rdma

func addVerbs(map[string]Config) {}

// registrations returns a node's registrations with its device.
func registrations(*Node) string { return "" }

//go:build rdma && linux && cgo

package rdma

import "os"

// addVerbs adds the contract's verbs carrier where DOWNBEAT_RDMA_ADDR names an address of a network
// interface with an RDMA device ("make test-rdma" does, in a virtual machine with soft-RoCE).
func addVerbs(cs map[string]Config) {
	if ip := os.Getenv("DOWNBEAT_RDMA_ADDR"); ip != "" {
		cs["verbs"] = Config{Providers: []string{"verbs"}, Listen: ip + ":0", Token: "a token"}
	}
}

package rdma

import "fmt"

func (n *Node) reachVerbs(addr, hostport string) (*Peer, error) {
	return nil, fmt.Errorf("%w: built without the tag rdma", ErrNotSupported)
}

func verbsAvailable() Availability {
	return Availability{Name: "verbs", Reason: "built without the tag rdma"}
}

// Package kernel says why a tail is long, as far as the kernel knows: round trips and retransmissions
// of TCP connections (a sockops program) and the time that threads of chosen processes waited for a
// processor (raw tracepoints). It needs root and cgroup v2; Open says what is missing otherwise. It
// measures and changes nothing. The data plane works without it: its own delays are those of an
// application echo (rdma.Stats), which contain the round trip and the waits.
//
// The programs are compiled by "go generate" with clang; the objects are committed, so that neither
// building nor running needs one.
package kernel

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel delay delay.bpf.c -- -O2 -g -Wall -I/usr/include/x86_64-linux-gnu

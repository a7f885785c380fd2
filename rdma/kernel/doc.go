// Package kernel measures two causes of a long tail in the Linux kernel: round trips and retransmissions of TCP
// connections, with a sockops program, and the time that threads of chosen processes wait for a processor, with raw
// tracepoints. It needs root and cgroup v2; Open returns an error that says what is missing.
//
// The package changes nothing, and the data plane works without it. The delays in rdma.Stats are those of an echo
// between applications, which contain both the round trip and the wait.
//
// "go generate" compiles the programs with clang. The objects are committed, so neither building nor running needs
// clang.
package kernel

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel delay delay.bpf.c -- -O2 -g -Wall -I/usr/include/x86_64-linux-gnu

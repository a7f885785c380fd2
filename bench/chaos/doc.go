// Package chaos runs a deployment of bin/downbeat as processes on hosts of its own and makes them sick: they are
// killed, stopped, cut off, slowed, starved of descriptors and flooded, by seed. Callers are processes, too; an
// accountant that shares no code with the product (package account) counts their requests by id.
//
// An experiment is one promise with a bar. Where this machine has network namespaces and TUN devices each part is
// a host, and packets are harmed (package lan); elsewhere parts share loopback, and experiments that harm packets
// are skipped and say so.
package chaos

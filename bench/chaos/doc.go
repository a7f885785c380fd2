// Package chaos runs a deployment of bin/downbeat as processes on separate hosts and injects faults, chosen by seed:
// it kills, stops, disconnects and slows processes, exhausts their descriptors and floods them. Callers are
// processes, too. Package account, which shares no code with the product, counts their requests by id.
//
// An experiment is one promise with a bar. If this machine has network namespaces and TUN devices, each part is a
// host, and package lan harms packets. Otherwise the parts share loopback, and experiments that harm packets are
// skipped with a message.
package chaos

// Package usage reports a process's own use of the machine, so that other processes do not count.
package usage

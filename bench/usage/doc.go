// Package usage tells what a process has taken of its machine, so that neighbours do not count.
package usage

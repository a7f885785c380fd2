// Package crosscheck opens a GPU through gorgonia.org/cu beside package cuda: the same primary context, memory,
// copies and a module, and compares what the two see. It is built with the tags cuda and gorgonia only: that
// package needs cuda.h of CUDA 11 or 12 to be compiled and libcuda.so to be linked (make test-gorgonia says how),
// and its init ends a process where there is no driver. Nothing else imports it. Decision 0061 has the numbers.
package crosscheck

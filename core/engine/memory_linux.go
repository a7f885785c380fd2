package engine

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const hugePage = 2 << 20

// hugePages asks the kernel to back a large array without pointers with huge pages: requests are touched in random
// order, and each touch of another small page costs a page table walk. It is advice: the kernel's answer is ignored.
func hugePages[T any](s []T) {
	var one T
	start := uintptr(unsafe.Pointer(unsafe.SliceData(s)))
	end := (start + uintptr(cap(s))*unsafe.Sizeof(one)) &^ (hugePage - 1)
	first := (start + hugePage - 1) &^ (hugePage - 1)
	if end <= first {
		return
	}
	b := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), end-start)
	_ = unix.Madvise(b[first-start:], unix.MADV_HUGEPAGE)
}

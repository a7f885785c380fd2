//go:build cuda && linux && cgo

package cuda

/*
#include <stdlib.h>
#include "library.h"
*/
import "C"

import "unsafe"

var _ [0]struct{} = [unsafe.Sizeof(C.gpu_product{}) - unsafe.Sizeof(Product{})]struct{}{}
var _ [0]struct{} = [unsafe.Sizeof(C.gpu_convolution{}) - unsafe.Sizeof(Convolution{})]struct{}{}
var _ [0]struct{} = [unsafe.Sizeof(C.gpu_operands{}) - unsafe.Sizeof(Operands{})]struct{}{}

type libraries = *C.gpu_library

const candidatesMax = 16

// OpenLibraries searches folders, a list separated by colons, then the dynamic linker's path. A missing library is
// not an error: it gives no candidates.
func (d *Device) OpenLibraries(folders string) (*Libraries, error) {
	g, ok := d.drv.(*gpu)
	if !ok {
		return &Libraries{}, nil
	}
	if err := d.checkUsable("open libraries"); err != nil {
		return nil, err
	}

	path := C.CString(folders)
	defer C.free(unsafe.Pointer(path))

	l := &Libraries{}
	var names [256]C.char
	if c := Code(C.library_open(g.dev, path, &l.state, &names[0], C.int32_t(len(names)))); c != CodeSuccess {
		return nil, d.checkCode(c, "open libraries")
	}

	l.names = C.GoString(&names[0])
	return l, nil
}

// Close closes the libraries. Their candidates must be freed first.
func (l *Libraries) Close() {
	if l != nil && l.state != nil {
		C.library_close(l.state)
		l.state = nil
	}
}

// Product returns the libraries' ways to compute p with at most workspace bytes, the most promising first; nil if
// there are none.
func (l *Libraries) Product(p Product, workspace int64, most int) ([]Candidate, error) {
	if l.state == nil {
		return nil, nil
	}
	var found [candidatesMax]C.gpu_candidate
	var n C.int32_t
	c := Code(C.library_product(l.state, (*C.gpu_product)(unsafe.Pointer(&p)), C.int64_t(workspace), &found[0], C.int32_t(min(most, candidatesMax)), &n))
	return candidatesOf(found[:n]), codeError(c, "ask for a product")
}

// Convolution is the same as Product, for convolutions.
func (l *Libraries) Convolution(p Convolution, workspace int64, most int) ([]Candidate, error) {
	if l.state == nil {
		return nil, nil
	}
	var found [candidatesMax]C.gpu_candidate
	var n C.int32_t
	c := Code(C.library_convolution(l.state, (*C.gpu_convolution)(unsafe.Pointer(&p)), C.int64_t(workspace), &found[0], C.int32_t(min(most, candidatesMax)), &n))
	return candidatesOf(found[:n]), codeError(c, "ask for a convolution")
}

func candidatesOf(found []C.gpu_candidate) (all []Candidate) {
	for _, f := range found {
		all = append(all, Candidate{Kernel: Kernel{handle: uint64(uintptr(C.library_run)), call: true}, State: uint64(f.call),
			Workspace: int64(f.workspace), Algorithm: int(f.algorithm)})
	}
	return all
}

// Free frees the candidate.
func (c *Candidate) Free() {
	if c.State != 0 {
		C.library_free(C.uint64_t(c.State))
		c.State = 0
	}
}

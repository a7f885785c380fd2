//go:build cuda && linux && cgo

package cuda

/*
#cgo LDFLAGS: -ldl
#cgo CFLAGS: -O2 -Wall -Werror
#include <stdlib.h>
#include "gpu.h"
#cgo noescape gpu_submit
#cgo nocallback gpu_submit
#cgo noescape gpu_query
#cgo nocallback gpu_query
#cgo noescape gpu_elapsed
#cgo nocallback gpu_elapsed
*/
import "C"

import (
	"fmt"
	"time"
	"unsafe"
)

const supported = true

// C reads the array of commands without a copy, so both sides must have the same layout.
var _ [0]struct{} = [unsafe.Sizeof(C.gpu_command{}) - unsafe.Sizeof(command{})]struct{}{}
var _ [0]struct{} = [unsafe.Sizeof(C.gpu_handle{}) - unsafe.Sizeof(Handle{})]struct{}{}
var _ [0]struct{} = [unsafe.Offsetof(C.gpu_command{}.block) - unsafe.Offsetof(command{}.block)]struct{}{}

// gpu is the driver of a real device. Its only state is the handle.
type gpu struct {
	dev   *C.gpu_device
	props Properties
}

const (
	kindStream C.int32_t = 0
	kindEvent  C.int32_t = 1
	kindSpare  C.int32_t = 2 // a stream, destroyed as kindStream
)

func deviceCount() (int, error) {
	var n C.int32_t
	if c := Code(C.gpu_count(&n)); c != CodeSuccess {
		return 0, &Error{Op: "count devices", Code: c}
	}
	return int(n), nil
}

func openDriver(index int) (driver, error) {
	// C reads Go's structs as bytes. With different layouts it would not fail but run garbage.
	if got := int(C.gpu_abi()); got != C.DB_GPU_ABI {
		return nil, fmt.Errorf("open device: gpu.c has ABI %d, this binary wants %d", got, C.DB_GPU_ABI)
	}

	g := &gpu{}
	var p C.gpu_properties
	if c := Code(C.gpu_open(C.int32_t(index), &g.dev, &p)); c != CodeSuccess {
		return nil, &Error{Op: fmt.Sprintf("open device %d", index), Code: c}
	}

	g.props = Properties{Name: C.GoString(&p.name[0]), Index: index, MemoryBytes: int64(p.memory), ComputeMajor: int(p.major),
		ComputeMinor: int(p.minor), Multiprocessors: int(p.multiprocessors), DriverVersion: int(p.driver)}
	return g, nil
}

func (g *gpu) properties() Properties { return g.props }

func (g *gpu) closeDriver() Code { return Code(C.gpu_close(g.dev)) }

func (g *gpu) memory() (int64, int64, Code) {
	var free, total C.int64_t
	c := Code(C.gpu_memory(g.dev, &free, &total))
	return int64(free), int64(total), c
}

func (g *gpu) allocDevice(bytes int64) (uint64, Code) {
	var p C.uint64_t
	c := Code(C.gpu_alloc(g.dev, C.int64_t(bytes), &p))
	return uint64(p), c
}

func (g *gpu) freeDevice(p uint64) Code { return Code(C.gpu_free(g.dev, C.uint64_t(p))) }

func (g *gpu) shareDevice(p uint64) (Handle, Code) {
	var h C.gpu_handle
	c := Code(C.gpu_share(g.dev, C.uint64_t(p), &h))
	return *(*Handle)(unsafe.Pointer(&h)), c
}

func (g *gpu) openShared(h Handle) (uint64, int64, Code) {
	var p C.uint64_t
	var bytes C.int64_t
	c := Code(C.gpu_open_shared(g.dev, (*C.gpu_handle)(unsafe.Pointer(&h)), &p, &bytes))
	return uint64(p), int64(bytes), c
}

func (g *gpu) closeShared(p uint64) Code { return Code(C.gpu_close_shared(g.dev, C.uint64_t(p))) }

func (g *gpu) allocHost(bytes int64, pinned bool) (unsafe.Pointer, Code) {
	var p unsafe.Pointer
	c := Code(C.gpu_alloc_host(g.dev, C.int64_t(bytes), flagOf(pinned), &p))
	return p, c
}

func (g *gpu) freeHost(p unsafe.Pointer, _ int64, pinned bool) Code {
	return Code(C.gpu_free_host(g.dev, p, flagOf(pinned)))
}

func flagOf(b bool) C.int32_t {
	if b {
		return 1
	}
	return 0
}

func (g *gpu) registerHost(p unsafe.Pointer, bytes int64) Code {
	return Code(C.gpu_register(g.dev, p, C.int64_t(bytes)))
}

func (g *gpu) unregisterHost(p unsafe.Pointer) Code { return Code(C.gpu_unregister(g.dev, p)) }

func (g *gpu) createHandle(kind C.int32_t) (uint64, Code) {
	var h C.uint64_t
	c := Code(C.gpu_create(g.dev, kind, &h))
	return uint64(h), c
}

func (g *gpu) newStream(spare bool) (uint64, Code) {
	if spare {
		return g.createHandle(kindSpare)
	}
	return g.createHandle(kindStream)
}

func (g *gpu) newEvent() (uint64, Code) { return g.createHandle(kindEvent) }

func (g *gpu) freeStream(h uint64) Code {
	return Code(C.gpu_destroy(g.dev, kindStream, C.uint64_t(h)))
}

func (g *gpu) freeEvent(h uint64) Code { return Code(C.gpu_destroy(g.dev, kindEvent, C.uint64_t(h))) }

func (g *gpu) query(event uint64) Code { return Code(C.gpu_query(g.dev, C.uint64_t(event))) }

func (g *gpu) elapsed(from, to uint64) (time.Duration, Code) {
	var ms C.float
	c := Code(C.gpu_elapsed(g.dev, C.uint64_t(from), C.uint64_t(to), &ms))
	return time.Duration(float64(ms) * 1e6), c
}

// loadModule adds the zero byte that the driver requires after PTX.
func (g *gpu) loadModule(image []byte) (uint64, Code) {
	text := append(append(make([]byte, 0, len(image)+1), image...), 0)
	var h C.uint64_t
	c := Code(C.gpu_load(g.dev, unsafe.Pointer(&text[0]), &h))
	return uint64(h), c
}

func (g *gpu) freeModule(h uint64) Code { return Code(C.gpu_unload(g.dev, C.uint64_t(h))) }

func (g *gpu) kernel(module uint64, name string) (uint64, Code) {
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	var h C.uint64_t
	c := Code(C.gpu_kernel(g.dev, C.uint64_t(module), s, &h))
	return uint64(h), c
}

func (g *gpu) submitCommands(commands []command, params []byte) (int, Code) {
	var done C.int32_t
	c := Code(C.gpu_submit(g.dev, (*C.gpu_command)(unsafe.Pointer(unsafe.SliceData(commands))), C.int32_t(len(commands)),
		(*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(params))), &done))
	return int(done), c
}

func (g *gpu) capture(stream uint64, commands []command, params []byte) (uint64, Code) {
	var h C.uint64_t
	c := Code(C.gpu_capture(g.dev, C.uint64_t(stream), (*C.gpu_command)(unsafe.Pointer(unsafe.SliceData(commands))), C.int32_t(len(commands)),
		(*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(params))), &h))
	return uint64(h), c
}

func (g *gpu) freeGraph(h uint64) Code { return Code(C.gpu_free_graph(g.dev, C.uint64_t(h))) }

func (g *gpu) pause(tries int, left time.Duration) bool {
	restBetween(tries, left)
	return true
}

//go:build cgo

package ortstring

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// ONNX Runtime's functions are members of one struct that grows only at its end, so the position of a function is part
// of the library's binary interface. These are three positions, and the version of the struct.
enum { GET_ERROR_MESSAGE = 2, RELEASE_STATUS = 93, GET_RESIZED_STRING_ELEMENT = 252, API_VERSION = 15 };

typedef struct {
	void **(*get_api)(uint32_t version);
	const char *(*get_version)(void);
} api_base;

// open_api returns the functions of a library, or NULL.
static void **open_api(const char *library) {
	void *handle = dlopen(library, RTLD_NOW);
	if (!handle) return NULL;

	const api_base *(*get_base)(void) = (const api_base *(*)(void))dlsym(handle, "OrtGetApiBase");
	return get_base ? get_base()->get_api(API_VERSION) : NULL;
}

// fill sets element i of a string tensor to the next lengths[i] bytes of data. It returns NULL, or the reason
// of a failure, which the caller must free.
static char *fill(void **api, void *tensor, const char *data, const uint32_t *lengths, size_t n) {
	void *(*resize)(void *, size_t, size_t, char **) = (void *(*)(void *, size_t, size_t, char **))api[GET_RESIZED_STRING_ELEMENT];
	for (size_t i = 0; i < n; i++) {
		char *element;
		void *status = resize(tensor, i, lengths[i], &element);
		if (status) {
			char *text = strdup(((const char *(*)(const void *))api[GET_ERROR_MESSAGE])(status));
			((void (*)(void *))api[RELEASE_STATUS])(status);
			return text;
		}

		memcpy(element, data, lengths[i]);
		data += lengths[i];
	}
	return NULL;
}
*/
import "C"

import (
	"errors"
	"fmt"
	"unsafe"
)

// API is the function table of one ONNX Runtime library. Any goroutine may call its methods.
type API struct{ functions *unsafe.Pointer }

// Open finds the functions in a library that the process can load. The library stays loaded.
func Open(library string) (*API, error) {
	name := C.CString(library)
	defer C.free(unsafe.Pointer(name))
	functions := C.open_api(name)

	if functions == nil {
		return nil, fmt.Errorf("%s: has no C API of ONNX Runtime 1.15 or later", library)
	}
	return &API{functions}, nil
}

// Fill sets the elements of a string tensor (an OrtValue), which must have as many elements as lengths. Element i is
// the next lengths[i] bytes of data, which must hold the sum of all lengths.
func (a *API) Fill(tensor unsafe.Pointer, data []byte, lengths []uint32) error {
	// C copies as many bytes as the lengths say.
	total := uint64(0)
	for _, n := range lengths {
		total += uint64(n)
	}
	if total > uint64(len(data)) {
		return fmt.Errorf("elements of %d bytes in all: there are only %d", total, len(data))
	}

	failed := C.fill(a.functions, tensor, (*C.char)(unsafe.Pointer(unsafe.SliceData(data))),
		(*C.uint32_t)(unsafe.SliceData(lengths)), C.size_t(len(lengths)))
	if failed == nil {
		return nil
	}

	defer C.free(unsafe.Pointer(failed))
	return errors.New(C.GoString(failed))
}

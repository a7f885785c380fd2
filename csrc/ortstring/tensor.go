//go:build cgo

package ortstring

/*
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// Positions in ONNX Runtime's struct of functions; see fill.go.
enum { ERROR_MESSAGE = 2, CREATE_TENSOR = 49, CREATE_MEMORY_INFO = 69, FREE_STATUS = 93, FREE_MEMORY_INFO = 94, FREE_VALUE = 96 };

// explain frees a status and returns its message, which the caller must free, or NULL.
static char *explain(void **api, void *status) {
	if (!status) return NULL;

	char *text = strdup(((const char *(*)(const void *))api[ERROR_MESSAGE])(status));
	((void (*)(void *))api[FREE_STATUS])(status);
	return text;
}

// create creates a tensor over the caller's memory. It returns NULL, or the reason of a failure, which the caller must
// free.
static char *create(void **api, void *data, size_t bytes, const int64_t *shape, size_t rank, int type, void **tensor) {
	void *info;
	char *failed = explain(api, ((void *(*)(int, int, void **))api[CREATE_MEMORY_INFO])(1, 0, &info)); // of an arena, the default
	if (failed) return failed;

	failed = explain(api, ((void *(*)(const void *, void *, size_t, const int64_t *, size_t, int, void **))api[CREATE_TENSOR])(info, data, bytes, shape, rank, type, tensor));
	((void (*)(void *))api[FREE_MEMORY_INFO])(info);
	return failed;
}

static void destroy(void **api, void *tensor) { ((void (*)(void *))api[FREE_VALUE])(tensor); }
*/
import "C"

import (
	"errors"
	"unsafe"
)

// NewScalar creates a tensor without dimensions (an OrtValue) of one element over memory, which must stay in place
// until FreeTensor. elementType is ONNX's number.
func (a *API) NewScalar(memory []byte, elementType int) (unsafe.Pointer, error) {
	var tensor unsafe.Pointer
	failed := C.create(a.functions, unsafe.Pointer(unsafe.SliceData(memory)), C.size_t(len(memory)), nil, 0, C.int(elementType), &tensor)
	if failed == nil {
		return tensor, nil
	}

	defer C.free(unsafe.Pointer(failed))
	return nil, errors.New(C.GoString(failed))
}

// FreeTensor frees a tensor of NewScalar; its memory stays.
func (a *API) FreeTensor(tensor unsafe.Pointer) { C.destroy(a.functions, tensor) }

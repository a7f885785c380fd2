// Package ort runs ONNX models on the CPU with ONNX Runtime. One Executor is one core: it runs each
// batch on the thread that calls it (intra-op = inter-op = 1), on tensors that were bound to the
// slots' memory for every batch size when the model was loaded. An executor of several threads
// (ExecutorOf) has sessions of its own, whose further threads sleep between batches.
//
// It measures nothing and does no batching. The library is loaded at run time (dlopen), so a binary
// starts without it; Open then says how to get it. Built without cgo, Open always fails.
//
// Invariants:
//
//	O1  A model is loaded only if every tensor of its configuration is in the graph with the same
//	    datatype and shape, and the graph needs no other input.
//	O2  Executors of one thread of one Runtime share a model's session, so its weights are in memory once.
//	O3  Execute creates no tensor, binding or Go object, except for models with BYTES tensors: ONNX
//	    Runtime owns strings, so they are copied in and out.
//	O4  A row of a BYTES model that cannot be run, or whose output has no room, is marked and does not
//	    affect other rows of its batch.
package ort

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Version is the ONNX Runtime that deploy/ort/fetch.sh installs.
const Version = "1.27.0"

// ErrMissing is wrapped by Open if there is no ONNX Runtime to load.
var ErrMissing = errors.New("ONNX Runtime is missing")

const libraryName = "libonnxruntime.so.1"

// Library returns the path from which to load ONNX Runtime: $ORT_LIB; otherwise the file that fetch.sh installed
// below the working directory or below the executable's tree; otherwise the bare name, for the system's search path.
func Library() string {
	if path := os.Getenv("ORT_LIB"); path != "" {
		return path
	}

	cached := filepath.Join(".cache", "ort", Version, libraryName)
	roots := []string{"."}

	// The executable may be at the root of its tree, or in its bin.
	if exe, err := os.Executable(); err == nil {
		roots = append(roots, filepath.Dir(exe), filepath.Dir(filepath.Dir(exe)))
	}

	for _, root := range roots {
		if path, err := filepath.Abs(filepath.Join(root, cached)); err == nil {
			if _, err := os.Stat(path); err == nil {
				return path
			}
		}
	}
	return libraryName
}

func missingLibrary(library string, err error) error {
	return fmt.Errorf("%w (%s: %w): run deploy/ort/fetch.sh, or set ORT_LIB to an installed libonnxruntime.so; emulated models are served without it", ErrMissing, library, err)
}

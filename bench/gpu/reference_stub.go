//go:build !cgo

package gpu

import (
	"errors"

	"downbeat.dev/backend/onnx"
)

var errNoReference = errors.New("built without cgo: no ONNX Runtime to compare with")

type reference struct{}

func openReference(string, *onnx.Model) (*reference, error) { return nil, errNoReference }

func (*reference) runReference(int, [][]byte) ([][]float64, error) { return nil, errNoReference }

func (*reference) closeReference() error { return nil }

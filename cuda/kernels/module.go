package kernels

import (
	_ "embed" // the device code

	"downbeat.dev/cuda"
)

// ptx is compiled from csrc/kernels.cu for compute capability 7.0; drivers compile it on for the GPU at
// hand. "make ptx" writes it again.
//
//go:embed ptx/kernels.ptx
var ptx []byte

// names are all kernels of the module, each with a Go form.
var names = []string{"conv", "conv_depthwise", "gemm", "pool", "binary", "binary_int64", "where", "unary", "affine",
	"softmax", "reduce", "argmax", "layernorm", "copy", "gather", "cast"}

// Set is the loaded module with its kernels.
type Set struct {
	module *cuda.Module
	byName map[string]cuda.Kernel
}

// Load puts the kernels on a device. An emulated device must have been opened with Reference.
func Load(d *cuda.Device) (*Set, error) {
	m, err := d.LoadModule(ptx)
	if err != nil {
		return nil, err
	}
	s := &Set{module: m, byName: map[string]cuda.Kernel{}}
	for _, name := range names {
		k, err := m.Kernel(name)
		if err != nil {
			m.Free()
			return nil, err
		}
		s.byName[name] = k
	}
	return s, nil
}

// Kernel returns a kernel by name; false for a name that the module does not have.
func (s *Set) Kernel(name string) (cuda.Kernel, bool) {
	k, ok := s.byName[name]
	return k, ok
}

// Free unloads the module.
func (s *Set) Free() {
	if s != nil {
		s.module.Free()
	}
}

package kernels

import (
	_ "embed" // the device code
	"strings"

	"downbeat.dev/cuda"
)

// The PTX is compiled from csrc; drivers compile it on for the GPU at hand. "make ptx" writes it again.
//
//go:embed ptx/kernels.ptx
var ptx []byte

//go:embed ptx/kernels_f16.ptx
var ptxF16 []byte

//go:embed ptx/kernels_bf16.ptx
var ptxBF16 []byte

//go:embed ptx/tensor.ptx
var ptxTensor []byte

// names are the kernels of the first module, each with a Go form. The kernels in forms are also in the modules of the
// other types of real numbers, with a suffix.
var names = []string{"conv", "conv_depthwise", "gemm", "pool", "binary", "binary_int64", "where", "unary", "affine",
	"softmax", "reduce", "argmax", "layernorm", "attention", "copy", "gather", "cast"}

// Set holds the loaded modules with their kernels.
type Set struct {
	dev     *cuda.Device
	modules []*cuda.Module
	byName  map[string]cuda.Kernel
	ready   map[int32]bool // loaded types of real numbers
}

// Load loads the kernels for float32 on a device. An emulated device must have been opened with Reference.
func Load(d *cuda.Device) (*Set, error) {
	s := &Set{dev: d, byName: map[string]cuda.Kernel{}, ready: map[int32]bool{Float32: true}}
	return s, s.loadImage(ptx, names)
}

// Require loads the kernels for a type of real numbers if they are not loaded. Float16 or BFloat16 also load the
// tensor-core kernels if the device has tensor cores.
func (s *Set) Require(real int32) error {
	if s.ready[real] {
		return nil
	}

	module, suffix := ptxF16, Suffix(real)
	if real == BFloat16 {
		module = ptxBF16
	}

	var list []string
	for name := range forms {
		list = append(list, name+suffix)
	}

	if err := s.loadImage(module, list); err != nil {
		return err
	}

	// The tensor-core kernels serve both half precisions and are loaded with the first.
	if s.Tensor() && !s.ready[Float16] && !s.ready[BFloat16] {
		if err := s.loadImage(ptxTensor, tensorKernelNames()); err != nil {
			return err
		}
	}

	s.ready[real] = true
	return nil
}

func (s *Set) loadImage(image []byte, list []string) error {
	m, err := s.dev.LoadModule(image)
	if err != nil {
		s.Free()
		return err
	}

	s.modules = append(s.modules, m)
	for _, name := range list {
		k, err := m.Kernel(name)
		if err != nil {
			s.Free()
			return err
		}
		s.byName[name] = k
	}
	return nil
}

// Tensor reports whether the device can run the tensor-core kernels.
func (s *Set) Tensor() bool {
	p := s.dev.Properties()
	return !p.Emulated && p.ComputeMajor >= 8
}

// Real returns the type of real numbers of a kernel, by its name.
func Real(name string) int32 {
	switch {
	case strings.HasSuffix(name, "_f16"):
		return Float16
	case strings.HasSuffix(name, "_bf16"):
		return BFloat16
	}
	return Float32
}

// Kernel returns a kernel by name; false if no loaded module has it.
func (s *Set) Kernel(name string) (cuda.Kernel, bool) {
	k, ok := s.byName[name]
	return k, ok
}

// Free unloads the modules.
func (s *Set) Free() {
	if s == nil {
		return
	}
	for _, m := range s.modules {
		m.Free()
	}
	s.modules = nil
}

package executor

import (
	"fmt"
	"slices"

	"downbeat.dev/cuda"
	"downbeat.dev/cuda/kernels"
	"downbeat.dev/cuda/layers"
)

const (
	workspaceMax  = 32 << 20 // of a library's call; cuBLAS recommends this for compute 9.0
	candidatesMax = 4        // of a library, for one shape
)

// asked is a library's answer for a shape.
type asked struct {
	form  int // which of kernels.LibraryOf
	found []cuda.Candidate
}

// libraryOptions returns the libraries' options for a step.
func (r *Runtime) libraryOptions(s *layers.Step) (all []option, err error) {
	if r.libraries.Names() == "" {
		return nil, nil
	}

	forms := kernels.LibraryOf(s.Kernel, s.Params)

	// The libraries take long to answer, so ask once for each shape.
	answers, ok := r.asked[s.Shape()]
	for i := 0; !ok && i < len(forms); i++ {
		var found []cuda.Candidate
		if f := &forms[i]; f.Product != nil {
			found, err = r.libraries.Product(*f.Product, workspaceMax, candidatesMax)
		} else {
			found, err = r.libraries.Convolution(*f.Convolution, workspaceMax, candidatesMax)
		}
		if err != nil {
			return nil, err
		}
		answers = append(answers, asked{i, found})
	}

	r.asked[s.Shape()] = answers

	for _, a := range answers {
		for k := range a.found {
			o, err := r.libraryOption(s.Kernel, &forms[a.form], &a.found[k])
			if err != nil {
				return nil, err
			}
			all = append(all, o)
		}
	}
	return all, nil
}

func (r *Runtime) libraryOption(name string, f *kernels.Library, c *cuda.Candidate) (o option, err error) {
	library := "cublasLt"
	if f.Convolution != nil {
		library = "cudnn"
	}

	operands := f.Operands
	operands.State = c.State

	// A library's call makes its own launches: grid and block have no meaning here.
	step := layers.Step{Kernel: library, Grid: cuda.Dim{X: 1, Y: 1, Z: 1}, Block: cuda.Dim{X: 1, Y: 1, Z: 1},
		Params: slices.Clone(kernels.Bytes(&operands)), Addresses: 6}
	o = option{label: fmt.Sprintf("%s/%d", library, c.Algorithm), launches: []launch{{step, c.Kernel}}, workspace: c.Workspace}

	// The part that the library cannot fuse runs as a separate kernel after it.
	if f.Rest.Act == kernels.None {
		return o, nil
	}

	grid, block := kernels.Elementwise(f.Rest.Count)
	rest := layers.Step{Kernel: kernels.Named("unary", kernels.Real(name)), Grid: grid, Block: block, Params: slices.Clone(kernels.Bytes(&f.Rest)), Addresses: 2}
	k, ok := r.kernels.Kernel(rest.Kernel)
	if !ok {
		return o, fmt.Errorf("no kernel %q", rest.Kernel)
	}

	o.launches = append(o.launches, launch{rest, k})
	return o, nil
}

// forgetLibraries frees the libraries' resources.
func (r *Runtime) forgetLibraries() {
	for _, answers := range r.asked {
		for _, a := range answers {
			for i := range a.found {
				a.found[i].Free()
			}
		}
	}
	r.asked = nil
	r.libraries.Close()
}

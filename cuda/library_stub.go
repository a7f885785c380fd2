//go:build !(cuda && linux && cgo)

package cuda

type libraries struct{}

// OpenLibraries finds no library in this build.
func (d *Device) OpenLibraries(string) (*Libraries, error) { return &Libraries{}, nil }

// Close does nothing.
func (l *Libraries) Close() {}

// Product returns no candidates.
func (l *Libraries) Product(Product, int64, int) ([]Candidate, error) { return nil, nil }

// Convolution returns no candidates.
func (l *Libraries) Convolution(Convolution, int64, int) ([]Candidate, error) { return nil, nil }

// Free does nothing.
func (c *Candidate) Free() {}

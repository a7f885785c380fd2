package kernels

import "downbeat.dev/cuda"

// threads is the block size of kernels with one element per thread; csrc has the same number.
const threads = 256

// blocksMax bounds a grid; kernels loop over the rest.
const blocksMax = 1 << 16

// Elementwise returns the grid and block of the kernels that loop over count elements.
func Elementwise(count int64) (grid, block cuda.Dim) {
	blocks := min((count+threads-1)/threads, blocksMax)
	return cuda.Dim{X: uint32(max(blocks, 1)), Y: 1, Z: 1}, cuda.Dim{X: threads, Y: 1, Z: 1}
}

// PerRow returns the grid and block of the kernels with one block per row.
func PerRow(count int64) (grid, block cuda.Dim) {
	return cuda.Dim{X: uint32(min(max(count, 1), blocksMax)), Y: 1, Z: 1}, cuda.Dim{X: threads, Y: 1, Z: 1}
}

// tileM and tileN are the outputs of one block of gemm and conv; csrc has the same numbers.
const (
	tileM = 64
	tileN = 64
)

// Launch returns the grid and block of gemm.
func (p *Gemm) Launch() (grid, block cuda.Dim) {
	return cuda.Dim{X: countTiles(p.N, tileN), Y: countTiles(p.M, tileM), Z: gridDepth(p.B1, p.B2)}, cuda.Dim{X: threads, Y: 1, Z: 1}
}

// Launch returns the grid and block of conv: its product has K/Groups rows and OH·OW columns for each
// image and group.
func (p *Conv) Launch() (grid, block cuda.Dim) {
	return cuda.Dim{X: countTiles(p.OH*p.OW, tileN), Y: countTiles(p.K/p.Groups, tileM), Z: gridDepth(p.N, p.Groups)}, cuda.Dim{X: threads, Y: 1, Z: 1}
}

func countTiles(n, tile int32) uint32 { return uint32((n + tile - 1) / tile) }

// gridDepth returns the third extent of a grid, which the hardware bounds; kernels loop over the rest.
func gridDepth(a, b int32) uint32 { return uint32(min(int64(a)*int64(b), 65535)) }

// columns is the inner extent from which reduce uses one thread per row; csrc has the same number.
const columns = 32

// Launch returns the grid and block of reduce.
func (p *Rows) Launch() (grid, block cuda.Dim) {
	rows := int64(p.Outer) * int64(p.Inner)
	// Adjacent threads then read adjacent numbers.
	if p.Inner >= columns {
		return Elementwise(rows)
	}
	return PerRow(rows)
}

const attentionTile = 32 // the queries of a block of attention, twice as many for heads of half the largest size; csrc has the same

// Launch returns the grid and block of attention.
func (p *Attention) Launch() (grid, block cuda.Dim) {
	tile := int32(attentionTile)
	if p.Size <= AttentionSizeMax/2 {
		tile *= 2
	}
	return PerRow(int64(p.Batch) * int64(p.Heads) * int64((p.Rows+tile-1)/tile))
}

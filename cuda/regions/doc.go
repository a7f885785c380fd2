// Package regions reads and writes device memory that other processes of the host have shared by a handle (CUDA's
// IPC): regions of a gateway's clients.
//
// All methods may be called by any goroutine. A Region must not be used after its Close; Devices are closed after the
// last of their regions. Copies go through pinned memory of ours, so that a GPU which hangs can write to no memory
// that has found another owner.
package regions

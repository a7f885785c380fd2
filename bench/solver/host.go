package solver

import (
	"context"
	"math"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

// hostModule is the name under which the module imports the host's functions.
const hostModule = "a"

// instantiateHost provides the functions that HiGHS imports from its host: clocks, growing memory, and output of
// messages. There are no files; every call that opens one fails. The one-letter names are those of version 1.15.3.
func instantiateHost(ctx context.Context, runtime wazero.Runtime) error {
	const badFile, noEntry = 8, -44 // EBADF of WASI, -ENOENT of emscripten
	host := runtime.NewHostModuleBuilder(hostModule)
	export := func(name string, function any) {
		host.NewFunctionBuilder().WithFunc(function).Export(name)
	}

	// Functions that end the program panic: wazero turns a panic of the host into an error of the call.
	export("a", func(_, _, _ uint32) { panic("HiGHS threw an exception") })
	export("k", func() { panic("HiGHS aborted") })
	export("b", func(code uint32) { panic("HiGHS exited") })
	export("r", func(code uint32) { panic("HiGHS exited") })

	// Clocks.
	export("c", moduleClock)
	export("j", moduleClock)
	export("p", func(ctx context.Context, m api.Module, _ uint32, _ uint64, at uint32) uint32 {
		m.Memory().WriteUint64Le(at, uint64(moduleClock(ctx)*1e6))
		return 0
	})
	export("l", func(uint32, float64) uint32 { return 0 }) // setitimer
	export("m", func(_, _, _, _ uint32) {})                // tzset
	export("s", func() {})                                 // keep the runtime alive

	// Memory and environment.
	export("q", growMemory)
	export("n", func(_, _ uint32) uint32 { return 0 })
	export("o", func(_ context.Context, m api.Module, count, size uint32) uint32 {
		m.Memory().WriteUint32Le(count, 0)
		m.Memory().WriteUint32Le(size, 0)
		return 0
	})

	// Files: fcntl, ioctl, open, close, read, seek, write. Only the log is written, and it is discarded.
	export("e", func(_, _, _ uint32) int32 { return noEntry })
	export("h", func(_, _, _ uint32) int32 { return noEntry })
	export("i", func(_, _, _, _ uint32) int32 { return noEntry })
	export("d", func(uint32) uint32 { return badFile })
	export("g", func(_, _, _, _ uint32) uint32 { return badFile })
	export("t", func(uint32, uint64, uint32, uint32) uint32 { return badFile })
	export("f", discardVector)

	_, err := host.Instantiate(ctx)
	return err
}

var started = time.Now()

// moduleClock is the module's clock. HiGHS uses it only for its time limit. When the context has ended, it returns a
// time beyond every limit, which stops a search without a check in its inner loops.
func moduleClock(ctx context.Context) float64 {
	ms := float64(time.Since(started).Microseconds()) / 1e3

	// To HiGHS, a canceled context looks like an expired time limit.
	if ctx.Err() != nil {
		ms += limitMax.Seconds() * 2e3
	}
	return ms
}

// growMemory makes room for size bytes plus a fifth, to avoid frequent calls.
func growMemory(_ context.Context, m api.Module, size uint32) uint32 {
	const page = 1 << 16
	memory := m.Memory()
	have := uint64(memory.Size())

	for _, want := range []uint64{min(uint64(size)*6/5, math.MaxInt32), uint64(size)} {
		if want <= have {
			continue
		}
		if _, ok := memory.Grow(uint32((want - have + page - 1) / page)); ok {
			return 1
		}
	}
	return 0
}

// discardVector counts the bytes of an iovec list and reports them as written.
func discardVector(_ context.Context, m api.Module, _, vector, n, written uint32) uint32 {
	total := uint32(0)
	for i := range n {
		// An iovec is an address and a length, 4 bytes each.
		size, _ := m.Memory().ReadUint32Le(vector + 8*i + 4)
		total += size
	}
	m.Memory().WriteUint32Le(written, total)
	return 0
}

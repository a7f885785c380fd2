package gateway

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// memory bounds the bytes of all messages under way, REST and gRPC together: requests as received and as parsed, and
// answers until they are sent. It is also gRPC's buffer pool. Any goroutine may call its methods; a nil memory has no
// bound.
type memory struct {
	max  int64
	used atomic.Int64
	over func() // called when a buffer exceeds max; must not block; nil: no call

	pools [len(pooledSizes)]sync.Pool
}

// memoryShare is the divisor of the process's memory that gives the part for messages. A message also lies in
// registered memory, and garbage may be as large as live data.
const memoryShare = 4

// takeBytes counts n more bytes, unless that would exceed the bound.
func (m *memory) takeBytes(n int64) bool {
	if m == nil {
		return true
	}

	// Add first and take back on failure, so that two callers cannot both pass the bound.
	if m.used.Add(n) > m.max {
		m.used.Add(-n)
		return false
	}
	return true
}

// limit returns the bound.
func (m *memory) limit() int64 {
	if m == nil {
		return math.MaxInt64
	}
	return m.max
}

// giveBytes counts n bytes less.
func (m *memory) giveBytes(n int64) {
	if m != nil {
		m.used.Add(-n)
	}
}

// isFull reports whether the bound is reached.
func (m *memory) isFull() bool { return m.used.Load() >= m.max }

// pooled is a buffer of the pool. Its data comes first because gRPC returns a pointer to that field.
type pooled struct {
	data    []byte
	counted *atomic.Int64 // bytes that memory counts for it
}

// pooledSizes are the capacities of pooled buffers, from one HTTP/2 frame up. Larger buffers are allocated each time.
var pooledSizes = [...]int{4 << 10, 16 << 10, 64 << 10, 1 << 20}

// poolOf returns the pool of buffers of at least n bytes; -1: none.
func poolOf(n int) int {
	for i, size := range pooledSizes {
		if n <= size {
			return i
		}
	}
	return -1
}

// Get implements mem.BufferPool. It cannot refuse: above the bound it calls over, which aborts calls.
func (m *memory) Get(n int) *[]byte {
	var b *pooled
	if i := poolOf(n); i < 0 {
		b = newPooled(m, n)
	} else if b, _ = m.pools[i].Get().(*pooled); b == nil {
		b = newPooled(m, pooledSizes[i])
	}
	b.data = b.data[:n]

	// The whole buffer counts, however much of it the message fills.
	size := int64(cap(b.data))
	b.counted.Store(size)
	if m.used.Add(size) > m.max && m.over != nil {
		m.over()
	}
	return &b.data
}

// newPooled allocates a buffer. gRPC drops buffers of broken streams without returning them, so a cleanup subtracts a
// dropped buffer's count when the garbage collector finds it.
func newPooled(m *memory, n int) *pooled {
	b := &pooled{data: make([]byte, n), counted: new(atomic.Int64)}

	// The cleanup holds only the counter: a reference to the buffer would keep it alive.
	runtime.AddCleanup(b, func(counted *atomic.Int64) { m.giveBytes(counted.Swap(0)) }, b.counted)
	return b
}

// Put implements mem.BufferPool; data comes from Get.
func (m *memory) Put(data *[]byte) {
	// The data is the first field, so its address is the buffer's.
	b := (*pooled)(unsafe.Pointer(data))

	// Swap in 0, so that the cleanup does not subtract the count again.
	m.giveBytes(b.counted.Swap(0))
	b.data = b.data[:cap(b.data)]

	// A buffer of any other size is left to the garbage collector.
	for i, size := range pooledSizes {
		if len(b.data) == size {
			m.pools[i].Put(b)
			return
		}
	}
}

// processMemory returns the memory that this process may use: the least of GOMEMLIMIT, its cgroup's limit and the
// host's memory.
func processMemory() int64 {
	// A negative limit changes nothing and returns the current limit.
	limit := debug.SetMemoryLimit(-1)
	var host unix.Sysinfo_t
	if unix.Sysinfo(&host) == nil {
		limit = min(limit, int64(uint64(host.Totalram)*uint64(host.Unit)))
	}
	return min(limit, cgroupMemory("/proc/self/cgroup", "/sys/fs/cgroup"))
}

// cgroupMemory returns the memory limit of a process's cgroup, version 2 or 1: the least limit on the path from its
// own group to the mount. In a container the mount often is the group itself.
func cgroupMemory(groups, mount string) int64 {
	limit := int64(math.MaxInt64)
	text, _ := os.ReadFile(groups)
	for line := range strings.Lines(string(text)) {
		// A line is hierarchy:controllers:path; version 2 names no controllers.
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, path, _ := strings.Cut(rest, ":")

		root, file := mount, "memory.max"
		switch controllers {
		case "":
		case "memory":
			root, file = mount+"/memory", "memory.limit_in_bytes"
		default:
			continue
		}

		// The limits of the enclosing groups also apply.
		for ; ; path = path[:strings.LastIndexByte(path, '/')] {
			limit = min(limit, readLimit(root+path+"/"+file))
			if !strings.Contains(path, "/") {
				break
			}
		}
	}
	return limit
}

// readLimit reads a cgroup's limit; without one it returns the largest number.
func readLimit(file string) int64 {
	text, err := os.ReadFile(file)
	if err != nil {
		return math.MaxInt64
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || n <= 0 { // "max"
		return math.MaxInt64
	}
	return n
}

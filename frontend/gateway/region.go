package gateway

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"downbeat.dev/rdma"
)

// Limits on registered regions.
const (
	regionsMax    = 1024
	regionNameMax = 256
)

// regionDir is where the objects of shm_open lie on Linux.
const regionDir = "/dev/shm"

// region is memory that a client of this host has registered: a part of a shared memory object, or device memory. An object
// is mapped, and copied from and to by rdma.CopyShared alone, here or in the data plane: a client may truncate it under a
// request.
type region struct {
	name, key    string
	offset, size int64        // of the region within the object, bytes
	file         *os.File     // the object
	memory       []byte       // of the object, from the page on that the region begins in
	start        int64        // of the region in memory
	users        atomic.Int64 // the registry and each call under way; the last closes file and mapping

	device   DeviceRegion // the memory, instead of an object; nil: it is one
	deviceID int
}

func (r *region) releaseRegion() {
	switch {
	case r.users.Add(-1) > 0:
	case r.device != nil:
		_ = r.device.Close() // nobody is left to be told
	default:
		_ = syscall.Munmap(r.memory) // fails for what is no mapping alone
		r.file.Close()
	}
}

// mapRegion maps the region's part of its object.
func (r *region) mapRegion() error {
	// A mapping begins at a page; a region may begin anywhere.
	r.start = r.offset % int64(os.Getpagesize())

	var err error
	r.memory, err = syscall.Mmap(int(r.file.Fd()), r.offset-r.start, int(r.start+r.size), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	return err
}

// bytesAt is n bytes of the region. They must be touched by rdma.CopyShared alone.
func (r *region) bytesAt(at, n int64) []byte { return r.memory[r.start+at:][:n] }

// readAt fills dst from a place in the region.
func (r *region) readAt(dst []byte, at int64) error {
	if r.device != nil {
		_, err := r.device.ReadAt(dst, at)
		return r.deviceFault(at, len(dst), err)
	}
	return r.copyShared(dst, r.bytesAt(at, int64(len(dst))), at)
}

// writeAt writes src to a place in the region.
func (r *region) writeAt(src []byte, at int64) error {
	if r.device != nil {
		_, err := r.device.WriteAt(src, at)
		return r.deviceFault(at, len(src), err)
	}
	return r.copyShared(r.bytesAt(at, int64(len(src))), src, at)
}

// copyShared copies from or to the region, of which at says the place. What the object does not have any more is an error: pages that are gone, where the fault
// would else end the process, and the rest of a page.
func (r *region) copyShared(dst, src []byte, at int64) error {
	end := at + int64(len(dst))
	if !rdma.CopyShared(dst, src) {
		return r.shrunkFault(at, end)
	}
	return r.checkSize(at, end) // after the copy, so that an object which shrinks meanwhile is noticed, too
}

// checkSize tells whether the object still has a part of the region.
func (r *region) checkSize(at, end int64) error {
	if fileSize(r.file) < r.offset+end {
		return r.shrunkFault(at, end)
	}
	return nil
}

func (r *region) shrunkFault(at, end int64) error {
	return invalidFault("shared memory region %q: bytes %d to %d: its object has shrunk since it was registered", r.name, at, end)
}

// fileSize is how large a file is now; 0 if nobody can tell.
func fileSize(f *os.File) int64 {
	info, err := f.Stat()
	if err != nil {
		return 0
	}
	return info.Size()
}

// regions are those that clients have registered. Its methods may be called from any goroutine.
type regions struct {
	off     bool         // the deployment does not allow them
	devices DeviceMemory // nil: there is none
	mu      sync.Mutex
	all     map[string]*region // guarded by mu
}

const regionsOff = "shared memory is not allowed by this deployment (client_shm in section protocol)"

// registerRegion opens an object and makes a part of it known by a name.
func (s *regions) registerRegion(name, key string, offset, size uint64) *fault {
	switch {
	case s.off:
		return invalidFault(regionsOff)
	case !isRegionName(name):
		return nameFault(name)
	case size == 0 || size > math.MaxInt64 || offset > math.MaxInt64-size:
		return invalidFault("region %q: offset %d and byte_size %d: must be at least 0 and 1, and add up to at most %d", name, offset, size, int64(math.MaxInt64))
	}

	file, f := openObject(key)
	if f != nil {
		return f
	}

	// A clear error now: reads and writes meet whatever the object becomes later.
	if has := fileSize(file); uint64(has) < offset+size {
		file.Close()
		return invalidFault("region %q: offset %d and byte_size %d: the object %q has %d bytes", name, offset, size, key, has)
	}

	r := &region{name: strings.Clone(name), key: strings.Clone(key), offset: int64(offset), size: int64(size), file: file}
	r.users.Store(1)
	if err := r.mapRegion(); err != nil {
		file.Close()
		return invalidFault("region %q: offset %d and byte_size %d: the object %q cannot be mapped: %v", name, offset, size, key, err)
	}

	if f := s.addRegion(r); f != nil {
		r.releaseRegion()
		return f
	}
	return nil
}

func isRegionName(name string) bool { return name != "" && len(name) <= regionNameMax }

func nameFault(name string) *fault {
	return invalidFault("region name: %.40q: must be 1 to %d bytes", name, regionNameMax)
}

func (s *regions) addRegion(r *region) *fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[r.name] != nil {
		return invalidFault("shared memory region '%s' already in manager: unregister it first", r.name)
	}
	if len(s.all) >= regionsMax {
		return invalidFault("region %q: %d are registered, the limit: unregister some first", r.name, regionsMax)
	}
	if s.all == nil {
		s.all = map[string]*region{}
	}
	s.all[r.name] = r
	return nil
}

// openObject opens a shared memory object that belongs to the gateway's own user: the name alone, which anyone who may
// call can guess, opens nobody else's.
func openObject(key string) (*os.File, *fault) {
	base := strings.TrimPrefix(key, "/")
	if base == "" || len(base) > 255 || base == "." || base == ".." || strings.ContainsAny(base, "/\x00") {
		return nil, invalidFault("key: %.40q: must be the name of a shared memory object, such as \"/input\"", key)
	}

	// No link leads elsewhere, and a FIFO does not block the call.
	file, err := os.OpenFile(filepath.Join(regionDir, base), os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, invalidFault("key: %q: Unable to open shared memory region: there is no such object on this host", key)
	case err != nil:
		return nil, invalidFault("key: %q: Unable to open shared memory region: this gateway's user may not, or it is no plain object", key)
	}

	// The open file is asked, since its name may have come to mean another object.
	info, err := file.Stat()
	if err == nil && info.Mode().IsRegular() {
		if sys, ok := info.Sys().(*syscall.Stat_t); ok && int(sys.Uid) == os.Geteuid() {
			return file, nil
		}
	}
	file.Close()
	return nil, invalidFault("key: %q: Unable to open shared memory region: it belongs to another user than the gateway's, or is no plain object", key)
}

// The forms of regions, as errors name them.
const (
	formSystem = "system"
	formCUDA   = "cuda"
)

// form is the form of the region.
func (r *region) form() string {
	if r.device != nil {
		return formCUDA
	}
	return formSystem
}

// unregisterRegion forgets a region of a form, all of them if the name is empty; of one that is not there, too, as in Triton, whose clients
// unregister before they register. Calls that use it end as if it were still there.
func (s *regions) unregisterRegion(form, name string) {
	s.mu.Lock()
	var gone []*region
	for key, r := range s.all {
		if r.form() == form && (name == "" || key == name) {
			delete(s.all, key)
			gone = append(gone, r)
		}
	}
	s.mu.Unlock()

	// A driver may wait for its device before it lets go of memory: calls that take other regions do not.
	for _, r := range gone {
		r.releaseRegion()
	}
}

// listRegions returns a region of a form, all of them by name if the name is empty.
func (s *regions) listRegions(form, name string) ([]*region, *fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*region
	for key, r := range s.all {
		if r.form() == form && (name == "" || key == name) {
			all = append(all, r)
		}
	}
	if name != "" && len(all) == 0 {
		return nil, invalidFault("Unable to find %s shared memory region: '%s'", form, name)
	}

	slices.SortFunc(all, func(a, b *region) int { return strings.Compare(a.name, b.name) })
	return all, nil
}

// takeRegion returns a region for a call, which must release it.
func (s *regions) takeRegion(name string) (*region, *fault) {
	if s.off {
		return nil, invalidFault(regionsOff)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.all[name]
	if r == nil {
		return nil, invalidFault("Unable to find shared memory region: '%.256s': it is not registered", name)
	}

	// Under the lock, where the registry's own use cannot end in between.
	r.users.Add(1)
	return r, nil
}

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

// regionDir is the directory of shm_open's objects on Linux.
const regionDir = "/dev/shm"

// region is memory that a client of this host registered: a part of a shared memory object, or device memory. An
// object is mapped, and only rdma.CopyShared copies from and to it, here or in the data plane, because a client may
// truncate the object during a request.
type region struct {
	name, key    string
	offset, size int64        // of the region within the object, in bytes
	file         *os.File     // the object
	memory       []byte       // the object's memory, from the page in which the region begins
	start        int64        // offset of the region in memory
	users        atomic.Int64 // the registry and each call under way; the last one closes file and mapping

	device   DeviceRegion // device memory instead of an object; nil: an object
	deviceID int
}

func (r *region) releaseRegion() {
	switch {
	case r.users.Add(-1) > 0:
	case r.device != nil:
		_ = r.device.Close() // no caller is left to report to
	default:
		_ = syscall.Munmap(r.memory) // fails only for memory that is not a mapping
		r.file.Close()
	}
}

// mapRegion maps the region's part of its object.
func (r *region) mapRegion() error {
	// A mapping begins at a page boundary; a region may begin anywhere.
	r.start = r.offset % int64(os.Getpagesize())

	var err error
	r.memory, err = syscall.Mmap(int(r.file.Fd()), r.offset-r.start, int(r.start+r.size), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	return err
}

// bytesAt returns n bytes of the region. Only rdma.CopyShared may access them.
func (r *region) bytesAt(at, n int64) []byte { return r.memory[r.start+at:][:n] }

// readAt fills dst from an offset of the region.
func (r *region) readAt(dst []byte, at int64) error {
	if r.device != nil {
		_, err := r.device.ReadAt(dst, at)
		return r.deviceFault(at, len(dst), err)
	}
	return r.copyShared(dst, r.bytesAt(at, int64(len(dst))), at)
}

// writeAt writes src to an offset of the region.
func (r *region) writeAt(src []byte, at int64) error {
	if r.device != nil {
		_, err := r.device.WriteAt(src, at)
		return r.deviceFault(at, len(src), err)
	}
	return r.copyShared(r.bytesAt(at, int64(len(src))), src, at)
}

// copyShared copies from or to the region at offset at. It returns an error if the object no longer has the bytes:
// both for missing pages, whose fault would otherwise end the process, and for the missing rest of a page.
func (r *region) copyShared(dst, src []byte, at int64) error {
	end := at + int64(len(dst))
	if !rdma.CopyShared(dst, src) {
		return r.shrunkFault(at, end)
	}
	return r.checkSize(at, end) // after the copy, so that an object that shrinks meanwhile is also noticed
}

// checkSize checks that the object still has a part of the region.
func (r *region) checkSize(at, end int64) error {
	if fileSize(r.file) < r.offset+end {
		return r.shrunkFault(at, end)
	}
	return nil
}

func (r *region) shrunkFault(at, end int64) error {
	return invalidFault("shared memory region %q: bytes %d to %d: its object has shrunk since it was registered", r.name, at, end)
}

// fileSize returns a file's current size; 0 if it cannot be read.
func fileSize(f *os.File) int64 {
	info, err := f.Stat()
	if err != nil {
		return 0
	}
	return info.Size()
}

// regions are the regions that clients have registered. Any goroutine may call its methods.
type regions struct {
	off     bool         // the deployment does not allow them
	devices DeviceMemory // nil: no device memory
	mu      sync.Mutex
	all     map[string]*region // guarded by mu
}

const regionsOff = "shared memory is not allowed by this deployment (client_shm in section protocol)"

// registerRegion opens an object and registers a part of it under a name.
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

	// Check now for a clear error; reads and writes check the object's later size.
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

// openObject opens a shared memory object, but only of the gateway's own user: any caller can guess the names of
// other users' objects.
func openObject(key string) (*os.File, *fault) {
	base := strings.TrimPrefix(key, "/")
	if base == "" || len(base) > 255 || base == "." || base == ".." || strings.ContainsAny(base, "/\x00") {
		return nil, invalidFault("key: %.40q: must be the name of a shared memory object, such as \"/input\"", key)
	}

	// Follow no link, and do not block on a FIFO.
	file, err := os.OpenFile(filepath.Join(regionDir, base), os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, invalidFault("key: %q: Unable to open shared memory region: there is no such object on this host", key)
	case err != nil:
		return nil, invalidFault("key: %q: Unable to open shared memory region: this gateway's user may not, or it is no plain object", key)
	}

	// Check the open file, since its name may by now mean another object.
	info, err := file.Stat()
	if err == nil && info.Mode().IsRegular() {
		if sys, ok := info.Sys().(*syscall.Stat_t); ok && int(sys.Uid) == os.Geteuid() {
			return file, nil
		}
	}
	file.Close()
	return nil, invalidFault("key: %q: Unable to open shared memory region: it belongs to another user than the gateway's, or is no plain object", key)
}

// The forms of regions, as in errors.
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

// unregisterRegion removes a region of a form, or all of them if the name is empty. Removing an unknown region is no
// error, as in Triton, whose clients unregister before they register. Calls that use the region continue with it.
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

	// A driver may wait for its device before it frees memory. Calls that take other regions do not wait for that.
	for _, r := range gone {
		r.releaseRegion()
	}
}

// listRegions returns a region of a form, or all of them sorted by name if the name is empty.
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

	// Under the lock, so that the registry's own use cannot end in between.
	r.users.Add(1)
	return r, nil
}

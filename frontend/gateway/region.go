package gateway

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"downbeat.dev/core/model"
)

// Limits on registered regions.
const (
	regionsMax    = 1024
	regionNameMax = 256
)

// regionDir is where the objects of shm_open lie on Linux.
const regionDir = "/dev/shm"

// region is a part of a shared memory object that a client of this host has registered. It is mapped, and copied from and
// to by copyShared alone: a client may truncate the object under a request.
type region struct {
	name, key    string
	offset, size int64        // of the region within the object, bytes
	file         *os.File     // the object
	memory       []byte       // of the object, from the page on that the region begins in
	start        int64        // of the region in memory
	users        atomic.Int64 // the registry and each call under way; the last closes file and mapping
}

func (r *region) releaseRegion() {
	if r.users.Add(-1) == 0 {
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

// bytesAt is n bytes of the region. They must be touched by copyShared alone.
func (r *region) bytesAt(at, n int64) []byte { return r.memory[r.start+at:][:n] }

// readAt fills dst from a place in the region.
func (r *region) readAt(dst []byte, at int64) error {
	return r.copyShared(dst, r.bytesAt(at, int64(len(dst))), at)
}

// writeAt writes src to a place in the region.
func (r *region) writeAt(src []byte, at int64) error {
	return r.copyShared(r.bytesAt(at, int64(len(src))), src, at)
}

// copyShared copies from or to the region. What the object does not have any more is an error: pages that are gone, where the fault
// would else end the process, and the rest of a page.
func (r *region) copyShared(dst, src []byte, at int64) (err error) {
	end := at + int64(len(dst))
	shrunk := func() error {
		return invalidFault("shared memory region %q: bytes %d to %d: its object has shrunk since it was registered", r.name, at, end)
	}

	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		fault := recover()
		if fault == nil {
			return
		}
		if _, ok := fault.(runtime.Error); !ok {
			panic(fault)
		}
		err = shrunk()
	}()
	copy(dst, src)

	// After the copy, so that an object which shrinks meanwhile is noticed, too.
	if fileSize(r.file) < r.offset+end {
		return shrunk()
	}
	return nil
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
	off bool // the deployment does not allow them
	mu  sync.Mutex
	all map[string]*region // guarded by mu
}

const regionsOff = "shared memory is not allowed by this deployment (client_shm in section protocol)"

// registerRegion opens an object and makes a part of it known by a name.
func (s *regions) registerRegion(name, key string, offset, size uint64) *fault {
	switch {
	case s.off:
		return invalidFault(regionsOff)
	case name == "" || len(name) > regionNameMax:
		return invalidFault("region name: %.40q: must be 1 to %d bytes", name, regionNameMax)
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

// unregisterRegion forgets a region, all of them if the name is empty; of one that is not there, too, as in Triton, whose clients
// unregister before they register. Calls that use it end as if it were still there.
func (s *regions) unregisterRegion(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, r := range s.all {
		if name == "" || key == name {
			delete(s.all, key)
			r.releaseRegion()
		}
	}
}

// listRegions returns a region, all of them by name if the name is empty.
func (s *regions) listRegions(name string) ([]*region, *fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*region
	for key, r := range s.all {
		if name == "" || key == name {
			all = append(all, r)
		}
	}
	if name != "" && len(all) == 0 {
		return nil, invalidFault("Unable to find system shared memory region: '%s'", name)
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

// place is where a tensor lies in a client's region, as its parameters say.
type place struct {
	name         string
	offset, size int64
	named, sized bool
	of           *region // once found; the call's to release
}

// setParameter takes a parameter whose value is a number.
func (p *place) setParameter(parameter string, value int64) *fault {
	switch parameter {
	case "shared_memory_offset":
		p.offset = value
	case "shared_memory_byte_size":
		p.size, p.sized = value, true
	default:
		return invalidFault("parameter %s: no such parameter: must be shared_memory_region, shared_memory_offset or shared_memory_byte_size", parameter)
	}
	if value < 0 {
		return invalidFault("parameter %s: %d: must be 0 or more", parameter, value)
	}
	return nil
}

// findRegion looks up the region of a tensor, of which what says which.
func (p *place) findRegion(s *regions, what string) *fault {
	if p.named != p.sized {
		return invalidFault("%s: shared_memory_region and shared_memory_byte_size: one is missing: both must be given", what)
	}
	r, f := s.takeRegion(p.name)
	if f != nil {
		return f
	}

	// Subtracted, since a sum of two numbers of a client may overflow.
	if p.size > r.size || p.offset > r.size-p.size {
		r.releaseRegion()
		return invalidFault("%s: shared_memory_offset %d and shared_memory_byte_size %d: region %q has %d bytes", what, p.offset, p.size, p.name, r.size)
	}
	p.of = r
	return nil
}

// findInput finds the region that an input lies in, if it says one. Texts are read at once, since their lengths must
// be seen; other elements stay where they are until a row of them is copied to registered memory.
func (in *inference) findInput(t *input) *fault {
	if !t.place.named && !t.place.sized {
		return nil
	}
	if t.given {
		return invalidFault("input %q: has data besides shared_memory_region: give one", t.name)
	}
	if f := in.findRegion(&t.place, "input", t.name); f != nil {
		return f
	}

	t.given = true
	if t.datatype != model.Bytes {
		return nil
	}

	if f := in.takeBytes(t.place.size); f != nil {
		return f
	}
	t.raw = make([]byte, t.place.size)
	if err := t.place.of.readAt(t.raw, t.place.offset); err != nil {
		return faultOf(err)
	}
	t.place.of = nil // raw has what it had
	return nil
}

// findOutput finds the region that an output is to lie in, if it says one, and checks that it will fit.
func (in *inference) findOutput(o *output, t *model.Tensor) *fault {
	if !o.place.named && !o.place.sized {
		return nil
	}
	if f := in.findRegion(&o.place, "output", o.name); f != nil {
		return f
	}

	o.binary = false // its bytes are not in the answer

	// Classes and texts have their size only with the result: placeOutputs checks it then.
	if need := int64(t.RowBytes()) * int64(in.rows); o.classes == 0 && need > o.place.size {
		return tooSmall(o, need)
	}
	return nil
}

func tooSmall(o *output, need int64) *fault {
	return invalidFault("shared memory size specified with the request for output '%s' (%d bytes) should be at least %d bytes to hold the results", o.name, o.place.size, need)
}

// findRegion finds the region of a tensor and keeps it until the call ends.
func (in *inference) findRegion(p *place, what, name string) *fault {
	if f := p.findRegion(in.regions, what+" "+strconv.Quote(name)); f != nil {
		return f
	}
	in.room.regions = append(in.room.regions, p.of)
	return nil
}

// placeOutputs moves the outputs that are to lie in regions there.
func (a *answer) placeOutputs(in *inference) *fault {
	for i := range in.outputs {
		o := &in.outputs[i]
		if o.place.of == nil {
			continue
		}
		if need := int64(len(a.raw[i])); need > o.place.size {
			return tooSmall(o, need)
		}

		if err := o.place.of.writeAt(a.raw[i], o.place.offset); err != nil {
			return faultOf(err)
		}
		o.place.size = int64(len(a.raw[i])) // what the answer tells
		a.raw[i] = nil
	}
	return nil
}

// isMemoryParameter tells whether a tensor's parameter says that it lies in shared memory.
func isMemoryParameter(name string) bool { return strings.HasPrefix(name, "shared_memory_") }

// parseJSON takes such a parameter of a JSON request.
func (p *place) parseJSON(s *jsonScanner, name string) *fault {
	if name == "shared_memory_region" {
		p.name, p.named = s.readString(), true
		return nil
	}
	return p.setParameter(name, s.readInteger())
}

// decodeGRPC takes such a parameter of a gRPC request.
func (p *place) decodeGRPC(name string, value parameter) *fault {
	if name == "shared_memory_region" {
		if value.num != 3 {
			return invalidFault("parameter %s: must be a string_param", name)
		}
		p.name, p.named = viewText(value.text), true
		return nil
	}

	n, ok := value.wholeNumber()
	if !ok {
		return invalidFault("parameter %s: must be an int64_param", name)
	}
	return p.setParameter(name, n)
}

// appendParameters appends the parameters of an output that lies in a region.
func (p *place) appendParameters(b []byte) []byte {
	b = append(b, `,"parameters":{"shared_memory_region":`...)
	b = appendQuoted(b, []byte(p.name))
	if p.offset != 0 {
		b = append(b, `,"shared_memory_offset":`...)
		b = strconv.AppendInt(b, p.offset, 10)
	}
	b = append(b, `,"shared_memory_byte_size":`...)
	b = strconv.AppendInt(b, p.size, 10)
	return append(b, '}')
}

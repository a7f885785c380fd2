package cuda

import "unsafe"

// failing fails call n of the driver that may allocate, counted from 0, as if memory were exhausted.
type failing struct {
	driver
	left int
	hit  string
}

func (f *failing) fail(op string) bool {
	f.left--
	if f.left == -1 {
		f.hit = op
	}
	return f.left == -1
}

func (f *failing) allocDevice(bytes int64) (uint64, Code) {
	if f.fail("alloc") {
		return 0, CodeOutOfMemory
	}
	return f.driver.allocDevice(bytes)
}

func (f *failing) allocHost(bytes int64, pinned bool) (unsafe.Pointer, Code) {
	if f.fail("alloc host") {
		return nil, CodeOutOfMemory
	}
	return f.driver.allocHost(bytes, pinned)
}

func (f *failing) registerHost(p unsafe.Pointer, bytes int64) Code {
	if f.fail("register") {
		return CodeOutOfMemory
	}
	return f.driver.registerHost(p, bytes)
}

func (f *failing) newStream(spare bool) (uint64, Code) {
	if f.fail("new stream") {
		return 0, CodeOutOfMemory
	}
	return f.driver.newStream(spare)
}

func (f *failing) newEvent() (uint64, Code) {
	if f.fail("new event") {
		return 0, CodeOutOfMemory
	}
	return f.driver.newEvent()
}

func (f *failing) loadModule(image []byte) (uint64, Code) {
	if f.fail("load module") {
		return 0, CodeOutOfMemory
	}
	return f.driver.loadModule(image)
}

func (f *failing) capture(stream uint64, commands []command, params []byte) (uint64, Code) {
	if f.fail("capture") {
		return 0, CodeOutOfMemory
	}
	return f.driver.capture(stream, commands, params)
}

func (f *failing) submitCommands(commands []command, params []byte) (int, Code) {
	if f.fail("submit") {
		return 0, CodeOutOfMemory
	}
	return f.driver.submitCommands(commands, params)
}

// FailNth makes call n of d's driver that may allocate fail. hit returns its name once it has failed.
func FailNth(d *Device, n int) (hit func() string) {
	f := &failing{driver: d.drv, left: n}
	d.drv = f
	return func() string { return f.hit }
}

//go:build cuda && gorgonia && linux && cgo

package crosscheck

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"gorgonia.org/cu"

	"downbeat.dev/cuda"
)

// touchPTX is a kernel that writes one word: cu.Function.Launch copies eight bytes of each parameter, so it cannot
// launch kernels that take a struct by value, as all kernels of this repository do.
const touchPTX = `.version 6.0
.target sm_70
.address_size 64
.visible .entry touch(.param .u64 touch_param_0)
{
	.reg .b32 %r<2>;
	.reg .b64 %rd<3>;
	ld.param.u64 %rd1, [touch_param_0];
	cvta.to.global.u64 %rd2, %rd1;
	mov.u32 %r1, 42;
	st.global.u32 [%rd2], %r1;
	ret;
}
`

const touched = 42

// Both is a device opened twice: by package cuda and by gorgonia.org/cu. It belongs to one goroutine, which stays on
// its thread.
type Both struct {
	Ours   *cuda.Device
	Stream *cuda.Stream
	Event  *cuda.Event
	Word   *cuda.Memory // where touch writes

	Touch       cuda.Kernel
	TheirTouch  cu.Function
	TheirStream cu.Stream

	device  cu.Device
	module  *cuda.Module
	theirs  cu.Module
	context cu.CUContext
}

// Open opens device 0 in both packages, on the primary context that they share.
func Open() (*Both, error) {
	// The calls of cu use the thread's current context, so this goroutine must keep its thread.
	runtime.LockOSThread()
	b := &Both{}
	if err := b.openBoth(); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

func (b *Both) openBoth() (err error) {
	if b.Ours, err = cuda.Open(cuda.Config{}); err != nil {
		return err
	}
	if b.Stream, err = b.Ours.NewStream(); err != nil {
		return err
	}
	if b.Event, err = b.Ours.NewEvent(); err != nil {
		return err
	}

	if b.Word, err = b.Ours.Alloc(4); err != nil {
		return err
	}

	if b.module, err = b.Ours.LoadModule([]byte(touchPTX)); err != nil {
		return err
	}
	if b.Touch, err = b.module.Kernel("touch"); err != nil {
		return err
	}

	// Open cu's device, on the primary context in which package cuda runs.
	if b.device, err = cu.GetDevice(0); err != nil {
		return err
	}
	if b.context, err = b.device.RetainPrimaryCtx(); err != nil {
		return err
	}
	if err = cu.SetCurrentContext(b.context); err != nil {
		return err
	}

	// The loader of cu takes a C string, which ends with a zero.
	if b.theirs, err = cu.LoadData(touchPTX + "\x00"); err != nil {
		return err
	}
	if b.TheirTouch, err = b.theirs.Function("touch"); err != nil {
		return err
	}

	b.TheirStream, err = cu.MakeStream(cu.NonBlocking)
	return err
}

// Check compares how both packages see the device, memory and a kernel's effect.
func (b *Both) Check(ctx context.Context) error {
	name, err := b.device.Name()
	if err != nil {
		return err
	}
	if got := b.Ours.Properties().Name; got != name {
		return fmt.Errorf("device is %q here and %q there", got, name)
	}

	_, total, err := b.Ours.MemoryInfo()
	if err != nil {
		return err
	}
	if _, there, err := cu.MemInfo(); err != nil || there != total {
		return fmt.Errorf("memory is %d here and %d there: %w", total, there, err)
	}

	if err := b.checkMemory(ctx); err != nil {
		return err
	}
	return b.checkKernels(ctx)
}

// checkMemory writes to memory of one package through the other, both ways.
func (b *Both) checkMemory(ctx context.Context) error {
	want, got := []byte("downbeat"), make([]byte, 8)

	p, err := cu.MemAlloc(int64(len(want)))
	if err != nil {
		return err
	}
	defer func() { _ = cu.MemFree(p) }()

	var s cuda.Submission

	// Written by package cuda, read by cu.
	s.CopyIn(b.Stream, cuda.Address(p), want)
	if err := b.runAndWait(ctx, &s); err != nil {
		return err
	}
	if err := cu.MemcpyDtoH(unsafe.Pointer(&got[0]), p, int64(len(got))); err != nil || !bytes.Equal(got, want) {
		return fmt.Errorf("their memory, written here, read there: %q: %w", got, err)
	}

	// Written by cu, read by package cuda.
	word := [4]byte{1, 2, 3, 4}
	if err := cu.MemcpyHtoD(cu.DevicePtr(b.Word.Address()), unsafe.Pointer(&word[0]), 4); err != nil {
		return err
	}

	s.Reset()
	s.CopyOut(b.Stream, got[:4], b.Word.Address())
	if err := b.runAndWait(ctx, &s); err != nil || !bytes.Equal(got[:4], word[:]) {
		return fmt.Errorf("our memory, written there, read here: %v: %w", got[:4], err)
	}

	return nil
}

// checkKernels runs the kernel by each package on memory of package cuda.
func (b *Both) checkKernels(ctx context.Context) error {
	for name, launch := range map[string]func() error{"here": b.LaunchOurs, "there": b.LaunchTheirs} {
		// Overwrite the word before each launch, so that a kernel that does not run is noticed.
		var s cuda.Submission
		s.Fill(b.Stream, b.Word.Address(), 0xff, 4)
		if err := b.runAndWait(ctx, &s); err != nil {
			return err
		}

		if err := errors.Join(launch(), cu.Synchronize()); err != nil {
			return fmt.Errorf("launch %s: %w", name, err)
		}

		got := make([]byte, 4)
		s.Reset()
		s.CopyOut(b.Stream, got, b.Word.Address())
		if err := b.runAndWait(ctx, &s); err != nil || got[0] != touched {
			return fmt.Errorf("launch %s: the kernel wrote %v: %w", name, got, err)
		}
	}
	return nil
}

func (b *Both) runAndWait(ctx context.Context, s *cuda.Submission) error {
	s.Record(b.Stream, b.Event)
	return errors.Join(b.Ours.Submit(s), b.Ours.Wait(ctx, b.Event))
}

// LaunchOurs enqueues the kernel once, through package cuda.
func (b *Both) LaunchOurs() error {
	var s cuda.Submission
	b.Add(&s)
	return b.Ours.Submit(&s)
}

// Add adds one launch to a submission.
func (b *Both) Add(s *cuda.Submission) {
	p := uint64(b.Word.Address())

	one := cuda.Dim{X: 1, Y: 1, Z: 1}
	s.Launch(b.Stream, b.Touch, one, one, 0, unsafe.Slice((*byte)(unsafe.Pointer(&p)), 8))
}

// LaunchTheirs enqueues the kernel once, through gorgonia.org/cu.
func (b *Both) LaunchTheirs() error {
	p := uint64(b.Word.Address())
	return b.TheirTouch.Launch(1, 1, 1, 1, 1, 1, 0, b.TheirStream, []unsafe.Pointer{unsafe.Pointer(&p)})
}

// Close closes both.
func (b *Both) Close() (err error) {
	defer runtime.UnlockOSThread()
	if b.context != (cu.CUContext{}) {
		err = errors.Join(b.TheirStream.Destroy(), b.theirs.Unload(), b.device.ReleasePrimaryCtx())
	}
	if b.Ours == nil {
		return err
	}

	b.module.Free()
	b.Word.Free()
	b.Event.Free()
	b.Stream.Free()
	return errors.Join(err, b.Ours.Close())
}

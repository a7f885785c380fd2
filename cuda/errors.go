package cuda

import (
	"errors"
	"fmt"
)

// Code is a result of the CUDA driver, with the driver's own numbers. Zero is success and never becomes an error.
type Code int32

// The codes that Downbeat distinguishes. All other numbers of the driver are passed on unchanged.
const (
	CodeSuccess           Code = 0
	CodeInvalidValue      Code = 1
	CodeOutOfMemory       Code = 2
	CodeNotInitialized    Code = 3
	CodeDeviceUnavailable Code = 46
	CodeNoDevice          Code = 100
	CodeInvalidDevice     Code = 101
	CodeInvalidImage      Code = 200
	CodeInvalidContext    Code = 201
	CodeECC               Code = 214
	CodeInvalidPTX        Code = 218
	CodeInvalidHandle     Code = 400
	CodeNotFound          Code = 500
	CodeNotReady          Code = 600
	CodeIllegalAddress    Code = 700
	CodeLaunchResources   Code = 701
	CodeLaunchTimeout     Code = 702
	CodeAlreadyPinned     Code = 712
	CodeLaunchFailed      Code = 719
	CodeNotSupported      Code = 801
	CodeUnknown           Code = 999
)

// The first and the last of the driver's codes for failed kernels; some codes between them mean other things.
const (
	codeAssert        Code = 710
	codeHardwareStack Code = 714
)

var codeNames = map[Code]string{
	CodeSuccess: "success", CodeInvalidValue: "invalid value", CodeOutOfMemory: "out of memory",
	CodeNotInitialized: "not initialized", CodeDeviceUnavailable: "device lost", CodeNoDevice: "no device",
	CodeInvalidDevice: "invalid device", CodeInvalidImage: "invalid image", CodeInvalidContext: "invalid context",
	CodeECC: "uncorrectable ECC error", CodeInvalidPTX: "invalid PTX", CodeInvalidHandle: "invalid handle",
	CodeNotFound: "not found", CodeNotReady: "not ready", CodeIllegalAddress: "illegal address",
	CodeLaunchResources: "launch out of resources", CodeLaunchTimeout: "launch timeout",
	CodeAlreadyPinned: "host memory is registered already", CodeLaunchFailed: "launch failed", CodeNotSupported: "not supported", CodeUnknown: "unknown",
}

// String returns the code's name, or its number.
func (c Code) String() string {
	if s, ok := codeNames[c]; ok {
		return s
	}
	return fmt.Sprintf("code %d", int32(c))
}

// Sticky reports whether the device is unusable after this code until it is closed and opened again.
func (c Code) Sticky() bool {
	switch {
	case c == CodeDeviceUnavailable, c == CodeECC, c == CodeUnknown, c == CodeInvalidContext:
		return true
	case c == CodeIllegalAddress, c == CodeLaunchTimeout, c == codeAssert:
		return true
	}
	return c >= codeHardwareStack && c <= CodeLaunchFailed
}

// Error is a call that the device refused. Op names the call, with sizes if they explain the error.
type Error struct {
	Op   string
	Code Code
}

// Error returns "op: code".
func (e *Error) Error() string { return e.Op + ": " + e.Code.String() }

// Is matches the sentinels below.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrNotSupported:
		return e.Code == CodeNotSupported || e.Code == CodeNoDevice
	case ErrOutOfMemory:
		return e.Code == CodeOutOfMemory
	case ErrDeviceLost:
		return e.Code.Sticky()
	}
	return false
}

// The errors on which callers decide; an *Error matches them through errors.Is.
var (
	ErrNotSupported = errors.New("cuda: no GPU support in this build or on this host")
	ErrOutOfMemory  = errors.New("cuda: out of memory")
	ErrDeviceLost   = errors.New("cuda: device lost") // any sticky code: reopen the device, move requests elsewhere
	ErrClosed       = errors.New("cuda: closed")
	ErrHung         = errors.New("cuda: the device did not finish in time") // wraps the context's error
)

// codeError turns a code into an error; it allocates nothing on success.
func codeError(c Code, op string) error {
	if c == CodeSuccess {
		return nil
	}
	return &Error{Op: op, Code: c}
}

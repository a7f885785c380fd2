//go:build cgo

package ort

import (
	"fmt"
	"os"
	"sync"

	onnx "github.com/yalue/onnxruntime_go"

	"downbeat.dev/backend/device"
)

// environment is ONNX Runtime's one environment per process. The binding keeps it in globals, so we
// do too; it stays until the process ends.
var environment struct {
	sync.Mutex
	library string // "" until loaded
}

// Runtime holds the sessions that its executors share. Its methods may be called from any goroutine.
type Runtime struct {
	library  string
	mu       sync.Mutex
	sessions map[string]*session // by path; guarded by mu
}

// session is a loaded graph.
type session struct {
	*onnx.DynamicAdvancedSession
	path   string
	users  int  // executors; guarded by Runtime.mu
	warmed bool // some executor runs, or ran, every batch size; guarded by Runtime.mu
}

// Open loads ONNX Runtime from library, or from where Library says if it is empty. A process loads
// it once: a later Open with another path is refused.
func Open(library string) (*Runtime, error) {
	if library == "" {
		library = Library()
	}
	environment.Lock()
	defer environment.Unlock()
	switch environment.library {
	case library:
	case "":
		if library != libraryName {
			if _, err := os.Stat(library); err != nil {
				return nil, missing(library, err)
			}
		}
		onnx.SetSharedLibraryPath(library)
		if err := onnx.InitializeEnvironment(); err != nil {
			return nil, missing(library, err)
		}
		environment.library = library
	default:
		return nil, fmt.Errorf("open ONNX Runtime %s: this process runs %s already", library, environment.library)
	}
	return &Runtime{library: library, sessions: map[string]*session{}}, nil
}

// Version returns the version of the loaded library, such as "1.27.0".
func (r *Runtime) Version() string { return onnx.GetVersion() }

// Executor returns an executor without models. The caller must Close it.
func (r *Runtime) Executor() *Executor {
	return &Executor{runtime: r, models: map[*device.Model]*loaded{}}
}

// options returns what every session is opened with. The caller must Destroy them.
func options(level onnx.GraphOptimizationLevel) (*onnx.SessionOptions, error) {
	o, err := onnx.NewSessionOptions()
	if err != nil {
		return nil, err
	}
	for _, set := range []func() error{
		func() error { return o.SetIntraOpNumThreads(1) },
		func() error { return o.SetInterOpNumThreads(1) },
		func() error { return o.SetExecutionMode(onnx.ExecutionModeSequential) },
		func() error { return o.SetGraphOptimizationLevel(level) },
		func() error { return o.SetLogSeverityLevel(onnx.LoggingLevelError) },
	} {
		if err := set(); err != nil {
			o.Destroy()
			return nil, err
		}
	}
	return o, nil
}

// acquire returns m's session, opening and checking it for the first user.
func (r *Runtime) acquire(m *device.Model) (*session, error) {
	path := m.Source.ONNXPath
	if path == "" {
		return nil, fmt.Errorf("model %s has no ONNX file (platform %s)", m.Name, m.Source.Platform)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sessions[path]
	if s == nil {
		if err := checkGraph(path, m); err != nil {
			return nil, err
		}
		o, err := options(onnx.GraphOptimizationLevelEnableAll)
		if err != nil {
			return nil, fmt.Errorf("set session options: %w", err)
		}
		defer o.Destroy()
		opened, err := onnx.NewDynamicAdvancedSession(path, nil, nil, o)
		if err != nil {
			return nil, fmt.Errorf("load %s: %w", path, err)
		}
		s = &session{DynamicAdvancedSession: opened, path: path}
		r.sessions[path] = s
	}
	s.users++
	return s, nil
}

// warms reports, once per session, that the caller is to run every batch size.
func (r *Runtime) warms(s *session) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := !s.warmed
	s.warmed = true
	return first
}

// release gives a session back; the last user frees it.
func (r *Runtime) release(s *session) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.users--; s.users > 0 {
		return nil
	}
	delete(r.sessions, s.path)
	return s.Destroy()
}

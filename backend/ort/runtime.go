//go:build cgo

package ort

import (
	"fmt"
	"os"
	"sync"
	"time"

	onnx "github.com/yalue/onnxruntime_go"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/repo"
	"downbeat.dev/csrc/ortstring"
)

// environment is ONNX Runtime's single environment per process. The binding keeps it in globals, so this package does
// too; it stays until the process ends.
var environment struct {
	sync.Mutex
	library string // "" until loaded
}

// Runtime holds the sessions that its executors share. Its methods may be called from any goroutine.
type Runtime struct {
	library  string
	strings  *ortstring.API
	mu       sync.Mutex
	sessions map[file]*session // guarded by mu
}

// file identifies a model's file in the state in which it was read: a replaced file is another.
type file struct {
	path     string
	exit     int // the early exit that is run; 0: the model itself
	bytes    int64
	modified time.Time
	owner    *Executor // the only one that runs it, as it has threads of its own; nil: every executor of one thread may
}

// statFile returns the current state of the file at path.
func statFile(path string) (file, error) {
	info, err := os.Stat(path)
	if err != nil {
		return file{}, err
	}
	return file{path: path, bytes: info.Size(), modified: info.ModTime()}, nil
}

// session is a loaded graph.
type session struct {
	*onnx.DynamicAdvancedSession
	file
	held    int64 // bytes of the graph that it runs
	strings *ortstring.API
	users   int  // number of executors; guarded by Runtime.mu
	warmed  bool // an executor runs, or ran, every batch size; guarded by Runtime.mu
}

// Open loads ONNX Runtime from library, or from Library's path if library is empty. A process loads it once: a later
// Open with another path is refused.
func Open(library string) (*Runtime, error) {
	if library == "" {
		library = Library()
	}

	environment.Lock()
	defer environment.Unlock()

	// A process can load ONNX Runtime only once.
	switch environment.library {
	case library:
	case "":
		// The dynamic linker looks up a bare name: there is no path to check.
		if library != libraryName {
			if _, err := os.Stat(library); err != nil {
				return nil, missingLibrary(library, err)
			}
		}
		onnx.SetSharedLibraryPath(library)
		if err := onnx.InitializeEnvironment(); err != nil {
			return nil, missingLibrary(library, err)
		}
		environment.library = library
	default:
		return nil, fmt.Errorf("open ONNX Runtime %s: this process runs %s already", library, environment.library)
	}

	strings, err := ortstring.Open(library)
	if err != nil {
		return nil, missingLibrary(library, err)
	}
	return &Runtime{library: library, strings: strings, sessions: map[file]*session{}}, nil
}

// Version returns the version of the loaded library, such as "1.27.0".
func (r *Runtime) Version() string { return onnx.GetVersion() }

// Executor returns an executor of one thread without models. The caller must Close it.
func (r *Runtime) Executor() *Executor { return r.ExecutorOf(1) }

// ExecutorOf is Executor with batches that run on several threads: the one that waits for the batch, and others of the
// executor's own sessions.
func (r *Runtime) ExecutorOf(threads int) *Executor {
	return &Executor{runtime: r, threads: max(1, threads), models: map[*device.Model]*loaded{}}
}

// sessionOptions returns the options of a session. The caller must Destroy them.
func sessionOptions(level onnx.GraphOptimizationLevel, threads int) (*onnx.SessionOptions, error) {
	o, err := onnx.NewSessionOptions()
	if err != nil {
		return nil, err
	}

	// The thread that runs a batch is one of them. The others are the session's own: between batches they must sleep,
	// because other models' sessions use the same cores.
	spin := "1"
	if threads > 1 {
		spin = "0"
	}

	for _, set := range []func() error{
		func() error { return o.SetIntraOpNumThreads(threads) },
		func() error { return o.AddSessionConfigEntry("session.intra_op.allow_spinning", spin) },
		func() error { return o.SetInterOpNumThreads(1) },
		func() error { return o.SetExecutionMode(onnx.ExecutionModeSequential) },
		func() error { return o.SetGraphOptimizationLevel(level) },
		func() error { return o.SetLogSeverityLevel(onnx.LoggingLevelFatal) },
	} {
		if err := set(); err != nil {
			o.Destroy()
			return nil, err
		}
	}
	return o, nil
}

// acquireSession returns the session of source's file for e; for the first user it opens the session and checks it against
// m.
func (r *Runtime) acquireSession(e *Executor, m *device.Model, source *repo.Model) (*session, error) {
	f, err := statFile(source.ONNXPath)
	if err != nil {
		return nil, err
	}
	f.exit = source.ExitStage
	if e.threads > 1 {
		f.owner = e
	}

	r.mu.Lock()
	defer r.mu.Unlock()

	// One session per file, whichever executor of one thread runs it: its weights are in memory once (O2).
	s := r.sessions[f]
	if s == nil {
		part, err := checkGraph(source, m)
		if err != nil {
			return nil, err
		}

		o, err := sessionOptions(onnx.GraphOptimizationLevelEnableAll, e.threads)
		if err != nil {
			return nil, fmt.Errorf("set session options: %w", err)
		}
		defer o.Destroy()

		s = &session{file: f, held: f.bytes, strings: r.strings}
		if part == nil {
			s.DynamicAdvancedSession, err = onnx.NewDynamicAdvancedSession(f.path, nil, nil, o)
		} else {
			text := part.Marshal()
			s.held = int64(len(text))
			s.DynamicAdvancedSession, err = onnx.NewDynamicAdvancedSessionWithONNXData(text, nil, nil, o)
		}
		if err != nil {
			return nil, fmt.Errorf("load %s: %w", f.path, err)
		}
		r.sessions[f] = s
	}

	s.users++
	return s, nil
}

// warmsFirst returns true once per session, to the caller that must run every batch size.
func (r *Runtime) warmsFirst(s *session) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := !s.warmed
	s.warmed = true
	return first
}

// releaseSession releases a session; the last user frees it.
func (r *Runtime) releaseSession(s *session) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.users--; s.users > 0 {
		return nil
	}

	delete(r.sessions, s.file)
	return s.Destroy()
}

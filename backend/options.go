package backend

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"time"

	"downbeat.dev/backend/emu"
	"downbeat.dev/core/wire"
)

// SlotBytesMax bounds a slot, and so the batch size of models with large rows.
const SlotBytesMax = 32 << 20

const executorsMax = 1024

// Options configure a backend. The zero value serves ./models, and needs a Scheduler.
type Options struct {
	Name       string // shown by the scheduler; the host's name when empty
	SubCluster string
	Scheduler  string        // host:port, or an address within this process
	Token      string        // the secret that all parts share
	TLS        *tls.Config   // for the session with the scheduler
	Patient    bool          // keep looking for the scheduler until Stop if it is not there within a second
	Models     string        // the model repository, several separated by commas; "models" when empty
	Control    string        // ControlNone, ControlExplicit or ControlPoll; empty: ControlNone
	Load       []string      // with ControlExplicit: the models to load at start; "*" stands for all
	State      string        // with ControlExplicit: a directory that keeps the commands' results for the next start; empty: not kept
	PollEvery  time.Duration // with ControlPoll; 0: 15 s
	Strict     bool          // models must be described in full by their config.pbtxt; otherwise their files complete it
	Executors  int           // ONNX Runtime executors, Threads cores each; 0: one per 2·Threads cores
	Threads    int           // of each ONNX Runtime executor; 0: 1
	Lanes      int           // equal parts of each executor or GPU, each a GPU to the scheduler; 0: 1
	Cores      []int         // pin one executor to each of these cores, instead of Executors
	Emulate    int           // emulated GPUs for all models, instead of ONNX Runtime; 0: none
	Faults     string        // faults of the emulated GPUs, see emu.ParseFaults
	faults     []emu.Planned
	kind       string    // the name under which profiles of this host are stored
	GPUs       bool      // run models on this host's GPUs, and on ONNX Runtime those that their kernels do not support
	Library    string    // path of ONNX Runtime; empty: that of ort.Library
	Data       DataPlane // the data plane; Token and Logger if empty, PoolBytes is set
	Logger     *slog.Logger
	commanded  *commanded
	without    []string // models that commands have unloaded, or given other files
}

func (o *Options) fillDefaults() error {
	if o.Name == "" {
		o.Name, _ = os.Hostname()
		o.Name = cmp.Or(o.Name, "backend")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	o.Models, o.Control = cmp.Or(o.Models, "models"), cmp.Or(o.Control, ControlNone)
	o.Threads, o.Lanes = cmp.Or(o.Threads, 1), cmp.Or(o.Lanes, 1)

	// Checked here, so that an error names the knob and not the part that fails because of it.
	switch {
	case len(o.Name) > wire.NameBytesMax:
		return fmt.Errorf("name: %.20q… has %d bytes: want at most %d", o.Name, len(o.Name), wire.NameBytesMax)
	case len(o.SubCluster) > wire.NameBytesMax:
		return fmt.Errorf("sub-cluster: %.20q… has %d bytes: want at most %d", o.SubCluster, len(o.SubCluster), wire.NameBytesMax)
	case !slices.Contains([]string{ControlNone, ControlExplicit, ControlPoll}, o.Control):
		return fmt.Errorf("control: %q: want %s, %s or %s", o.Control, ControlNone, ControlExplicit, ControlPoll)
	case len(o.Load) > 0 && o.Control != ControlExplicit:
		return fmt.Errorf("load: %v: only with control %q", o.Load, ControlExplicit)
	case o.State != "" && o.Control != ControlExplicit:
		return fmt.Errorf("state: %q: only with control %q", o.State, ControlExplicit)
	case o.Executors < 0 || o.Executors > executorsMax:
		return fmt.Errorf("executors: %d: want 0 (one per two cores) to %d", o.Executors, executorsMax)
	case o.Emulate < 0 || o.Emulate > executorsMax:
		return fmt.Errorf("emulate: %d: want 0 (none) to %d", o.Emulate, executorsMax)
	case o.GPUs && (o.Emulate > 0 || len(o.Cores) > 0):
		return fmt.Errorf("gpu: not together with emulated GPUs or cores")
	case len(o.Cores) > executorsMax:
		return fmt.Errorf("cores: %d of them: want at most %d", len(o.Cores), executorsMax)
	}

	if err := o.checkLanes(); err != nil {
		return err
	}

	// Faults name emulated GPUs by number, so their count must be known.
	var err error
	if o.faults, err = emu.ParseFaults(o.Faults, o.Emulate); err != nil {
		return err
	}

	for _, c := range o.Cores {
		if err := checkCore(c); err != nil {
			return err
		}
	}

	if len(o.Cores) > 0 {
		o.Executors = len(o.Cores)
	}
	if o.Executors == 0 {
		o.Executors = max(1, runtime.NumCPU()/2/o.Threads)
	}

	return nil
}

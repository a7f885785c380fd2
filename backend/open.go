package backend

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/emu"
	"downbeat.dev/backend/layered"
	"downbeat.dev/backend/measure"
	"downbeat.dev/backend/onnx"
	"downbeat.dev/backend/ort"
	"downbeat.dev/core/control"
	"downbeat.dev/core/model"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/repo"
	"downbeat.dev/core/wire"
	"downbeat.dev/cuda"
	"downbeat.dev/rdma"
)

// SlotBytesMax bounds a slot, and with it the batch size of models with large rows.
const SlotBytesMax = 32 << 20

const executorsMax = 1024

// Options say what a backend serves and to whom. The zero value serves ./models to a scheduler
// given by Link.
type Options struct {
	Name       string // shown by the scheduler; the host's name when empty
	SubCluster string
	Scheduler  string        // host:port; unused if Link is set
	Token      string        // the secret that all parts share
	TLS        *tls.Config   // for the session with the scheduler
	Link       Opener        // opens the session; nil: control.DialBackend to Scheduler
	Models     string        // the model repository, several with commas between them; "models" when empty
	Control    string        // ControlNone, ControlExplicit or ControlPoll; empty: ControlNone
	Load       []string      // with ControlExplicit: the models to load at start; "*" stands for all
	State      string        // with ControlExplicit: a directory where what commands have loaded is kept for the next start; empty: it is not
	PollEvery  time.Duration // with ControlPoll; 0: 15 s
	Strict     bool          // models must be described in full by their config.pbtxt; else their files complete it
	Executors  int           // ONNX Runtime executors, one core each; 0: one per two cores
	Cores      []int         // pin one executor to each of these cores, instead of Executors
	Emulate    int           // emulated GPUs for all models, instead of ONNX Runtime; 0: none
	Faults     string        // what goes wrong on the emulated GPUs; see emu.ParseFaults
	faults     []emu.Planned
	kind       string      // what profiles of this host are stored under
	GPUs       bool        // run models on this host's GPUs; what their kernels do not support, on ONNX Runtime
	Library    string      // ONNX Runtime; empty: where ort.Library says
	Data       rdma.Config // the data plane; Token and Logger if empty, PoolBytes is set
	Logger     *slog.Logger
	commanded  *commanded
	without    []string // models that commands have unloaded, or given other files
}

// Opener opens a backend's session; in one process it is the scheduler's own method.
type Opener func(ctx context.Context, hello wire.BackendHello, ev control.BackendEvents) (control.BackendLink, error)

// Service is a backend that is connected to its scheduler.
type Service struct {
	*Backend
	node *rdma.Node
	link control.BackendLink
}

// Start loads the repository, measures what has no profile for this kind of host, and connects. A
// scheduler that is not there is waited for until ctx ends (ten seconds without a deadline). The
// caller must Stop it.
func Start(ctx context.Context, o Options) (*Service, error) {
	if err := o.fillDefaults(); err != nil {
		return nil, err
	}
	seen, err := repo.Scan(o.modelDirectories()) // before anything is read: what changes meanwhile counts as changed
	if err != nil {
		return nil, err
	}

	if o.commanded, err = openCommanded(o.State, o.Name); err != nil {
		return nil, err
	}
	if o.Control == ControlExplicit {
		o.Load, o.without = o.commanded.atStart(o.Load)
	}
	c, err := o.assembleConfig(ctx)
	if err != nil {
		return nil, err
	}

	data := o.Data
	data.Token, data.Logger = cmp.Or(data.Token, o.Token), cmp.Or(data.Logger, o.Logger)
	data.PoolBytes = max(1<<30, 4*int64(device.SlotBytes(c.Models))*slotsEach*int64(len(c.GPUs)))
	if c.Node, err = rdma.Open(data); err != nil {
		return nil, errors.Join(fmt.Errorf("open data plane: %w", err), closeGPUs(c.GPUs))
	}

	overridden := slices.Sorted(maps.Keys(c.repository.overrides)) // later commands change it

	s := &Service{node: c.Node}
	if s.Backend, err = New(c); err != nil {
		return nil, errors.Join(err, c.Node.Close())
	}
	if s.link, err = o.Link(ctx, s.Hello(), s.Backend); err != nil {
		return nil, errors.Join(fmt.Errorf("connect to scheduler: %w", err), s.Backend.Close(), c.Node.Close())
	}

	// Polls and reloads come after the hello: what they change is told as changes to it.
	s.Attach(s.link)
	if o.Control == ControlPoll {
		s.wait.Add(1)
		go s.pollRepository(s.peers.ctx, seen)
	}
	if len(overridden) > 0 {
		s.wait.Add(1)
		go s.reloadOverridden(overridden)
	}
	return s, nil
}

// Stop finishes what was accepted, until ctx ends at the latest, then disconnects and frees
// everything. With a GPU that hangs it returns ctx's error and leaves the GPU's goroutine behind.
func (s *Service) Stop(ctx context.Context) error {
	// Drained before the link closes: results of accepted batches still reach the scheduler.
	drained := s.Drain(ctx)
	err := s.link.Close()
	s.logStats()

	// Close would wait for the hanging GPU, which may never answer.
	if drained != nil && s.anyHangs() {
		return errors.Join(drained, err)
	}
	return errors.Join(drained, err, s.Backend.Close(), s.node.Close())
}

// logStats tells what each GPU has done.
func (b *Backend) logStats() {
	for _, g := range b.Stats() {
		args := []any{"gpu", g.GPU, "batches", g.Batches, "rows", g.Rows, "busy", g.Busy.Round(time.Millisecond), "unsent", g.Unsent}
		for r, n := range g.Failed {
			if n > 0 {
				args = append(args, model.Reason(r).String(), n)
			}
		}
		b.log.Info("served", args...)
	}
}

func (b *Backend) anyHangs() bool {
	for _, g := range b.gpus {
		if g.hung.Load() {
			return true
		}
	}
	return false
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

	if o.Link == nil {
		o.Link = func(ctx context.Context, hello wire.BackendHello, ev control.BackendEvents) (control.BackendLink, error) {
			return control.DialBackend(ctx, control.DialOptions{Addr: o.Scheduler, Token: o.Token, TLS: o.TLS, Logger: o.Logger}, hello, ev)
		}
	}

	// Checked here, so that an error names the knob and not the part that stumbles over it.
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
		o.Executors = max(1, runtime.NumCPU()/2)
	}
	return nil
}

// assembleConfig reads the repository and makes the executors.
func (o *Options) assembleConfig(ctx context.Context) (Config, error) {
	c := Config{Name: o.Name, SubCluster: o.SubCluster, Token: o.Token, Logger: o.Logger}
	r, err := openRepository(o.Models, o.Strict)
	if err != nil {
		return c, err
	}

	for _, e := range r.Errors {
		o.Logger.Error("model left out", "model", e.Model, "err", e.Err)
		c.Failed = append(c.Failed, failedModel(e.Model, "", e.Err))
	}
	o.warnOfConfigs(r)

	o.leaveUnloaded(r, &c)
	library, missing := o.loadLibrary(r)
	if o.GPUs || library != nil {
		if o.kind, _, err = hostKind(o.GPUs, library); err != nil {
			return c, err
		}
	}

	for i := range r.Models {
		m, err := o.layoutModel(ctx, &r.Models[i], library)
		switch {
		case err == nil:
			c.Models = append(c.Models, m)
		case errors.Is(err, ort.ErrMissing): // said once, below or in the log
		case ctx.Err() != nil:
			return c, err
		default:
			o.Logger.Error("model left out", "model", r.Models[i].Name, "version", r.Models[i].Version, "err", err)
			c.Failed = append(c.Failed, failedModel(r.Models[i].Name, r.Models[i].Version, err))
		}
	}

	// With commands or polling, models may come later; without, a backend without models is a mistake.
	c.MayBeEmpty = o.Control != ControlNone
	switch {
	case len(c.Models) == 0 && c.MayBeEmpty:
	case len(c.Models) == 0 && missing != nil:
		return c, fmt.Errorf("no model of %s can be served: %w", o.Models, missing)
	case len(c.Models) == 0:
		return c, fmt.Errorf("no model of %s can be served (%d found, %d bad); the log says why", o.Models, len(r.Models), len(r.Errors))
	case missing != nil:
		o.Logger.Error("real models are left out", "served", len(c.Models), "found", len(r.Models), "err", missing)
	}

	c.Measure = o.measureProfile
	c.repository = &repository{dirs: o.modelDirectories(), control: o.Control, every: cmp.Or(o.PollEvery, pollEvery), options: o, library: library,
		overrides: o.commanded.overrides(), reasons: map[versionKey]string{}, commanded: o.commanded}
	for _, f := range c.Failed {
		if f.Reason != model.Unloaded {
			c.repository.reasons[versionKey{f.Name, f.Version}] = f.Reason
		}
	}
	c.Find = c.repository.readModels
	c.GPUs, err = o.makeExecutors(library)
	return c, err
}

// modelDirectories are the repositories that Models names.
func (o *Options) modelDirectories() []string { return strings.Split(o.Models, ",") }

// openRepository reads the repositories that a list with commas names.
func openRepository(list string, strict bool) (*repo.Repository, error) {
	o := repo.Options{Graph: onnx.Signature}

	// Without a graph to look at, nothing completes a config.pbtxt.
	if strict {
		o.Graph = nil
	}
	return repo.OpenAll(strings.Split(list, ","), o)
}

// leaveUnloaded takes the models from r that are not to be loaded at start.
func (o *Options) leaveUnloaded(r *repo.Repository, c *Config) {
	all := slices.Contains(o.Load, "*")
	if o.Control != ControlExplicit || all && len(o.without) == 0 {
		return
	}
	wanted := func(name string) bool {
		return (all || slices.Contains(o.Load, name)) && !slices.Contains(o.without, name)
	}

	names := r.Names()
	c.Failed = slices.DeleteFunc(c.Failed, func(m model.Info) bool { return !wanted(m.Name) })
	for _, e := range r.Errors {
		names = append(names, e.Model)
	}
	for _, name := range names {
		if !wanted(name) {
			c.Failed = append(c.Failed, model.Info{Name: name, Reason: model.Unloaded})
		}
	}
	r.Models = slices.DeleteFunc(r.Models, func(m repo.Model) bool { return !wanted(m.Name) })

	// A name that was asked for and is not there is told as a failure, not left out in silence.
	for _, name := range o.Load {
		if name != "*" && !slices.Contains(names, name) && !slices.Contains(o.without, name) {
			o.Logger.Error("model left out", "model", name, "err", repo.ErrNotFound)
			c.Failed = append(c.Failed, failedModel(name, "", repo.ErrNotFound))
		}
	}
}

// warnOfConfigs tells of every field of a model's configuration that is read and not honoured, once a model.
func (o *Options) warnOfConfigs(r *repo.Repository) {
	for i := range r.Models {
		if i > 0 && r.Models[i].Config == r.Models[i-1].Config {
			continue // another version
		}
		o.warnOf(&r.Models[i])
	}
}

func (o *Options) warnOf(m *repo.Model) {
	for _, w := range m.Config.Warnings {
		o.Logger.Warn("model configuration", "model", m.Name, "field", w)
	}
}

// cutReason cuts a reason to what the repository's index may say.
func cutReason(why string) string {
	reason := strings.ToValidUTF8(why, "?")

	// A cut may split a character, whose rest is dropped; what replaces bytes may be longer than they were.
	for len(reason) > model.LabelBytesMax {
		reason = strings.ToValidUTF8(reason[:model.LabelBytesMax-len("…")], "") + "…"
	}
	return reason
}

// loadLibrary loads ONNX Runtime if a model of the repository needs it. Without it, emulated models are
// served, and real ones that are to be emulated by a stored profile.
func (o *Options) loadLibrary(r *repo.Repository) (*ort.Runtime, error) {
	if o.Control != ControlNone { // models of any platform may come
		return ort.Open(o.Library)
	}
	if !slices.ContainsFunc(r.Models, func(m repo.Model) bool { return m.Platform == repo.PlatformONNX }) {
		return nil, nil
	}
	return ort.Open(o.Library)
}

// layoutModel prepares one model for the executors that there are.
func (o *Options) layoutModel(ctx context.Context, m *repo.Model, library *ort.Runtime) (*device.Model, error) {
	switch {
	case o.Emulate > 0 || m.Platform == repo.PlatformEmulated:
		return o.layoutEmulated(ctx, m, library)
	case library == nil && !o.GPUs:
		return nil, fmt.Errorf("platform %s: %w", m.Platform, ort.ErrMissing)
	}

	d, err := device.NewModel(m, 0, SlotBytesMax)
	if err != nil {
		return nil, err
	}

	// A stored profile of fewer batch sizes would leave the largest without a time: it is measured anew.
	if p, ok := m.Profile(o.kind); ok && len(p.TableNS) >= d.BatchMax {
		d.Profile, err = profile.New(p.TableNS)
	}
	return d, err
}

// hostKind names what the profiles are stored under that hold for this host's first GPU, or for ONNX Runtime
// here, and describes it.
func hostKind(gpu bool, library *ort.Runtime) (kind, about string, err error) {
	if !gpu {
		return measure.HostKind(library.Version()), measure.Describe(library.Version()), nil
	}
	if kind, about, err = layered.Kind(0); errors.Is(err, cuda.ErrNotSupported) {
		err = fmt.Errorf("gpu: this host has no GPU and driver that this binary can use: %w; without -gpu models run on the processor", err)
	}
	return kind, about, err
}

// layoutEmulated takes a model's own line, a stored profile, or else what this host takes for it.
func (o *Options) layoutEmulated(ctx context.Context, m *repo.Model, library *ort.Runtime) (*device.Model, error) {
	p, err := emu.Profile(m)
	if err == nil {
		d, err := device.NewModel(m, p.Max(), SlotBytesMax)
		if err == nil {
			d.Profile = p
		}
		return d, err
	}

	// A real model without a profile is emulated by what this host takes for it.
	if library == nil {
		return nil, fmt.Errorf("%w (%w)", err, ort.ErrMissing)
	}

	d, err := device.NewModel(m, 0, SlotBytesMax)
	if err != nil {
		return nil, err
	}
	return d, loaded(d, library, func(e device.Executor, s *device.Slot) (err error) {
		d.Profile, err = o.measureQuick(ctx, measure.On(e), d, s)
		return err
	})
}

// measureProfile returns the profile that a model was laid out with if it holds on this host, else a quick
// one.
func (o *Options) measureProfile(ctx context.Context, run measure.Timer, m *device.Model, s *device.Slot) (*profile.Profile, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}

	// Emulated models take what they say: there is nothing to measure.
	if o.Emulate > 0 || m.Source.Platform == repo.PlatformEmulated {
		return m.Profile, nil
	}
	if m.Profile != nil {
		if ok, err := measure.Check(ctx, run, m, s, m.Profile); ok || err != nil {
			return m.Profile, err
		}
		o.Logger.Warn("the stored profile does not hold on this host now; measuring again", "model", m.Name, "version", m.Version)
	}
	return o.measureQuick(ctx, run, m, s)
}

// quickTries is how often a model is measured that seems too slow for its SLO: a moment of the host may make it so.
const quickTries = 3

func (o *Options) measureQuick(ctx context.Context, run measure.Timer, m *device.Model, s *device.Slot) (*profile.Profile, error) {
	r, err := measure.Quick(ctx, run, m, s)

	for try := 1; err == nil && try < quickTries && m.Source.SLO > 0 && r.Table[0] > m.Source.SLO; try++ {
		r, err = measure.Quick(ctx, run, m, s)
	}
	if err != nil {
		return nil, err
	}
	o.Logger.Info("model measured; \"downbeat profile\" measures it better and stores the result", "model", m.Name, "version", m.Version,
		"batches", m.BatchMax, "first", r.Table[0], "largest", r.Table[len(r.Table)-1], "took", r.Elapsed.Round(time.Millisecond))
	return r.Profile()
}

// makeExecutors makes the executors of each core, GPU or emulated GPU. Every one can run every model.
func (o *Options) makeExecutors(library *ort.Runtime) ([]GPU, error) {
	if o.GPUs {
		return o.onGPUs(library)
	}
	var all []GPU

	n := o.Executors
	if o.Emulate > 0 {
		n = o.Emulate
	}
	for i := range n {
		g, err := o.openHost(i, library)
		if err != nil {
			return nil, errors.Join(err, closeGPUs(all))
		}
		all = append(all, g)
	}
	return all, nil
}

// openHost makes an emulated GPU for all models, or a core that runs real ones on ONNX Runtime.
func (o *Options) openHost(i int, library *ort.Runtime) (GPU, error) {
	name := fmt.Sprintf("emulated %d", i)
	options := emu.Options{Device: name}
	g := GPU{Name: name, Core: -1}

	switch {
	case o.Emulate > 0:
		options.Plan = o.faults[i]
	case len(o.Cores) > 0:
		g.Core = o.Cores[i]
		g.Name = fmt.Sprintf("core %d", g.Core)
	default:
		g.Name = fmt.Sprintf("cpu %d", i)
	}

	if o.Emulate == 0 && library != nil {
		g.Executors = append(g.Executors, library.Executor())
		options.Beside = true
	}

	// It comes last: a model goes to the first executor that supports it.
	emulated, err := emu.Open(options)
	if err != nil {
		return g, errors.Join(err, closeExecutors(g.Executors))
	}
	g.Executors = append(g.Executors, emulated)
	return g, nil
}

func closeGPUs(all []GPU) error {
	var errs []error
	for _, g := range all {
		errs = append(errs, closeExecutors(g.Executors))
	}
	return errors.Join(errs...)
}

func closeExecutors(all []device.Executor) error {
	var errs []error
	for _, e := range all {
		errs = append(errs, e.Close())
	}
	return errors.Join(errs...)
}

package model

// Limits of what an Info says, so that a message can carry it.
const (
	LabelsMax      = 1<<16 - 1 // class names of an output
	LabelBytesMax  = 1024      // a class name, and a reason
	ConfigBytesMax = 1<<16 - 1 // a model's config.pbtxt
)

// Unloaded is the Reason of a model that could be served and is not because nobody asked for it.
const Unloaded = "unloaded"

// Info tells a frontend of a model that it may ask for. Scheduler → frontend, on connecting
// and whenever it changes.
type Info struct {
	ID       uint32
	Name     string // empty: the id stands for no model any more
	Version  string
	SLO      int64 // ns; the budget of a request that names none
	BatchMax uint32
	Inputs   []Tensor
	Outputs  []Tensor
	Ready    bool // some backend serves it now
	Platform string
	// Unbatched says that the model's own tensors have no batch dimension (max_batch_size: 0 in its
	// configuration), so that clients must not be told of one.
	Unbatched bool
	// InputMax is what a request's input may take, in bytes, where a tensor of the model is BYTES; else 0: its tensors'
	// shapes say.
	InputMax uint32
	Config   string // its config.pbtxt as read; empty if larger than ConfigBytesMax

	// Since protocol 5:

	// SLOBinds says that a request's deadline is never later than its SLO allows, whatever budget it names.
	SLOBinds bool
	Priority uint8  // of a request that names none
	QueueMax uint32 // requests queued before new ones are rejected; 0: the scheduler's limit
	Reason   string // why no backend serves it; empty if one does, or nobody said

	// Since protocol 6:

	Family   string  // the family that it is a variant of, or that this entry is; empty: none
	Variant  string  // its name within the family
	Accuracy float64 // 0…1, of a family the best that is served; 0: not known
	// Static and Dynamic are the bytes that it holds while it is loaded, and more while its largest batch runs; 0: not known.
	Static, Dynamic uint64
	// Variants are the ids of the models of which any may answer, the most accurate first: the entry is a family, which
	// has no version. Empty: a model.
	Variants []uint32
	Floors   []Floor // of a family: what to ask for so that the answer is accurate enough, the lowest first

	// Since protocol 8:

	// Sequence says how requests follow one another; the last inputs and outputs are its. Nil: each request stands alone.
	Sequence *Sequence

	// Since protocol 9:

	// Optional says which inputs requests may leave out: bit k is that of Inputs[k].
	Optional uint64
	// ExitOf is the model that it is an early exit of: it runs the beginning of that model's layers. Empty: it is none.
	ExitOf string
	// Shared of the Static bytes are held once where that model of the same version is loaded, too.
	Shared uint64
}

// Floor is a family whose answers are at least so accurate.
type Floor struct {
	Accuracy float64
	ID       uint32 // what a request names in place of the family's own id
}

// Limits of a family.
const (
	VariantsMax = 64
	FloorsMax   = 4
)

// IsFamily reports whether the entry is a family and not a model.
func (i *Info) IsFamily() bool { return len(i.Variants) > 0 }

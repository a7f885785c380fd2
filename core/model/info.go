package model

// Limits of an Info, so that a message can carry it.
const (
	LabelsMax      = 1<<16 - 1 // class names of an output
	LabelBytesMax  = 1024      // a class name, and a reason
	ConfigBytesMax = 1<<16 - 1 // a model's config.pbtxt
)

// Unloaded is the Reason of a model that could be served but that nobody has loaded.
const Unloaded = "unloaded"

// BelowFloor begins the Reason of a family whose configured accuracy floor no variant reaches. The floor and the best
// accuracy there is follow.
const BelowFloor = "accuracy floor "

// Info describes a model to frontends. The scheduler sends it to each frontend on connecting and whenever it changes.
type Info struct {
	ID       uint32
	Name     string // empty: the id no longer names a model
	Version  string
	SLO      int64 // ns; the default budget
	BatchMax uint32
	Inputs   []Tensor
	Outputs  []Tensor
	Ready    bool // some backend serves it now
	Platform string
	// Unbatched reports that the model's own tensors have no batch dimension (max_batch_size: 0 in its
	// configuration), so clients must not see one.
	Unbatched bool
	// InputMax is the most bytes that a request's input may take if a tensor of the model is BYTES; else 0, as the
	// shapes give the size.
	InputMax uint32
	Config   string // its config.pbtxt as read; empty if larger than ConfigBytesMax

	// Since protocol 5:

	// SLOBinds says that a request's deadline is never later than its SLO allows, whatever budget it names.
	SLOBinds bool
	Priority uint8  // the default priority
	QueueMax uint32 // requests queued before new ones are rejected; 0: the scheduler's limit
	Reason   string // why no backend serves it; empty if one does or the reason is unknown

	// Since protocol 6:

	Family   string  // the family of this variant, or of this entry if it is a family; empty: none
	Variant  string  // the variant's name within the family
	Accuracy float64 // 0…1; of a family, that of its best variant served; 0: unknown
	// Static is the bytes that the loaded model holds, Dynamic the additional bytes while its largest batch runs; 0:
	// unknown.
	Static, Dynamic uint64
	// Variants are the ids of a family's models, the most accurate first; any of them may answer. A family has no
	// version. Empty: the entry is a model.
	Variants []uint32
	Floors   []Floor // of a family: ids for requests with an accuracy floor, the lowest floor first

	// Since protocol 8:

	// Sequence describes how requests follow one another; the last inputs and outputs belong to it. Nil: each request
	// stands alone.
	Sequence *Sequence

	// Since protocol 9:

	// Optional is the set of inputs that requests may leave out: bit k is Inputs[k].
	Optional uint64
	// ExitOf is the model of which this one is an early exit: it runs that model's first layers. Empty: it is not an
	// exit.
	ExitOf string
	// Shared is the part of Static that is held only once if the ExitOf model of the same version is loaded too.
	Shared uint64
}

// Floor is an accuracy floor of a family, with the id that requests use for it.
type Floor struct {
	Accuracy float64
	ID       uint32 // what a request names instead of the family's own id
}

// Limits of a family.
const (
	VariantsMax = 64
	FloorsMax   = 4
)

// IsFamily reports whether the entry is a family and not a model.
func (i *Info) IsFamily() bool { return len(i.Variants) > 0 }

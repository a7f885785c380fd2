package residency

import (
	"time"
)

// Kind is a content's data type, which AdaInf distinguishes by its use (§2.4, figure 12).
type Kind uint8

// The data types. Their reuse times in AdaInf's measurements give the start values of R.
const (
	Intermediates        Kind = iota // outputs of layers during inference: 0.01 to 1.6 ms
	RetrainParameters                // 0.02 to 6 ms
	RetrainIntermediates             // 0.02 to 7.5 ms
	Parameters                       // of inference: 67 to 68.6 ms, the next request of the application
	kinds
)

// reuseStart is the middle of each range of AdaInf figure 12a.
var reuseStart = [kinds]time.Duration{
	805 * time.Microsecond, 3010 * time.Microsecond, 3760 * time.Microsecond, 67800 * time.Microsecond,
}

// String names the kind.
func (k Kind) String() string {
	if k < kinds {
		return [kinds]string{"intermediates", "retrain_parameters", "retrain_intermediates", "parameters"}[k]
	}
	return "invalid"
}

// Place is the location of a content.
type Place uint8

// The places. Nowhere means a content without bytes: an intermediate before and after its batch.
const (
	Nowhere Place = iota
	Device
	Pinned
	Pageable
)

// ID identifies a content of one Table from Add to Remove; afterwards another content may get it.
type ID uint32

// Content is a Table's description of a content.
type Content struct {
	Name  string // model and layer, for errors
	Kind  Kind
	Bytes int64
	SLO   time.Duration
}

// Move is one step that the caller must perform, in order.
type Move struct {
	ID       ID
	From, To Place
}

func (k Kind) isIntermediate() bool { return k == Intermediates || k == RetrainIntermediates }

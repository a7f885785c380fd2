package wire

import (
	"fmt"
	"unicode/utf8"
)

// PlanVersion is the first version in which a leader sends its plan to standbys.
const PlanVersion = 8

// PlanBytesMax bounds a plan's document.
const PlanBytesMax = 8 << 20

// PlanRecord is a leader's latest plan, which its successor continues. Leader → standby, on every change and every
// second.
type PlanRecord struct {
	Number   uint64
	Document string // the engine's document, UTF-8; empty if it is larger than PlanBytesMax
}

const planRecordBytesMin = 8 + 4

// AppendPlanRecord appends a frame carrying m.
func AppendPlanRecord(dst []byte, m *PlanRecord) ([]byte, error) {
	e := beginFrame(dst, TypePlanRecord)
	e.u64(m.Number)
	e.checkLimit("bytes of a plan", len(m.Document), PlanBytesMax)
	if !utf8.ValidString(m.Document) {
		e.keepError(fmt.Errorf("%w: plan is not UTF-8", ErrMalformed))
	}
	e.u32(uint32(len(m.Document)))
	e.b = append(e.b, m.Document...)
	return e.endFrame(1)
}

// DecodePlanRecord decodes a frame that carries one PlanRecord.
func DecodePlanRecord(f Frame) (m PlanRecord, err error) {
	d := openFrame(f, TypePlanRecord, true)
	m.Number = d.u64()
	b := d.takeNext(d.checkCount("bytes of a plan", int(d.u32()), PlanBytesMax, 1))
	if !utf8.Valid(b) {
		d.keepError(fmt.Errorf("%w: plan is not UTF-8", ErrMalformed))
	}
	m.Document = string(b)
	return m, d.closeFrame()
}

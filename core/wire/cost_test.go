package wire

import (
	"bytes"
	"testing"

	"downbeat.dev/core/model"
	"downbeat.dev/internal/memcost"
)

// costFixed is the memory that a stream may take besides memcost.PerByte for each of its bytes: the Reader's buffer
// as it grows for the first frames, and errors.
const costFixed = 256 << 10

// FuzzFramesCost shows that no stream takes more memory than its bytes allow, whatever its headers promise.
func FuzzFramesCost(f *testing.F) {
	for _, s := range samples(f) {
		f.Add(s.bytes)
	}

	// Headers that promise the most, followed by little or nothing.
	for t := TypeFrontendHello; t <= TypeUnserved; t++ {
		for _, body := range []int{0, 1, 64, 4096} {
			b := make([]byte, HeaderBytes+body)
			putHeader(b, t, MessagesMax)
			f.Add(b)
		}
	}
	manyNames := &BackendHello{Version: Version, Name: "b", GPUs: make([]string, GPUsMax)}
	for range 64 {
		manyNames.Models = append(manyNames.Models, BackendModel{Info: model.Info{Inputs: make([]model.Tensor, TensorsMax)}})
	}
	b, err := AppendBackendHello(nil, manyNames)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)

	f.Fuzz(func(t *testing.T, stream []byte) {
		memcost.Check(t, stream, costFixed, func() {
			r := NewReader(bytes.NewReader(stream))
			for {
				fr, err := r.Next()
				if err != nil {
					return
				}
				decode(fr)
			}
		})
	})
}

// decode decodes a frame into new memory.
func decode(f Frame) {
	switch f.Type {
	case TypeFrontendHello:
		_, _ = DecodeFrontendHello(f)
	case TypeBackendHello:
		_, _ = DecodeBackendHello(f)
	case TypeStandbyHello:
		_, _ = DecodeStandbyHello(f)
	case TypeWelcome:
		_, _ = DecodeWelcome(f)
	case TypeRefusal:
		_, _ = DecodeRefusal(f)
	case TypeSubmit, TypeEarlySubmit:
		_, _ = DecodeSubmits(nil, f)
	case TypeCancel:
		_, _ = DecodeCancels(nil, f)
	case TypeOutcome:
		_, _ = DecodeOutcomes(nil, f)
	case TypeModels:
		_, _ = DecodeModels(f)
	case TypePeers:
		_, _ = DecodePeers(nil, f)
	case TypeExecute:
		_, _ = DecodeExecutes(nil, f)
	case TypeDone:
		_, _ = DecodeDones(nil, f)
	case TypePing:
		_, _ = DecodePing(f)
	case TypePong:
		_, _ = DecodePong(f)
	case TypeLead:
		_, _ = DecodeLead(f)
	case TypeFollow:
		_, _ = DecodeFollow(f)
	case TypeLearned:
		_, _ = DecodeLearned(f)
	case TypePlacement:
		_, _ = DecodePlacements(f)
	case TypePlacementReport:
		_, _ = DecodePlacementReports(f)
	case TypeLoadable:
		_, _ = DecodeLoadables(f)
	case TypeModelCommand:
		_, _ = DecodeModelCommands(f)
	case TypeModelAnswer:
		_, _ = DecodeModelAnswers(f)
	case TypeUnserved:
		_, _ = DecodeUnserved(f)
	case TypeSpareOffer:
		_, _ = DecodeSpareOffers(f)
	case TypeSpareStart:
		_, _ = DecodeSpareStarts(nil, f)
	case TypeSpareEnd:
		_, _ = DecodeSpareEnds(nil, f)
	case TypePlanRecord:
		_, _ = DecodePlanRecord(f)
	}
}

// TestDecodeKnowsEveryType: a type that is added to the protocol must also be added to the fuzz target.
func TestDecodeKnowsEveryType(t *testing.T) {
	if TypeEarlySubmit+1 != typeEnd {
		t.Errorf("the protocol has types up to %d, decode knows those up to %d", typeEnd-1, TypePlanRecord)
	}
}

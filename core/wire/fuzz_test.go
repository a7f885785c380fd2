package wire

import (
	"bytes"
	"testing"
)

// FuzzFrames feeds random streams to the reader and every decoder. A frame that decodes must encode to the same bytes
// again, in the version of its sender.
func FuzzFrames(f *testing.F) {
	for _, s := range samples(f) {
		for version := uint16(VersionMin); version <= Version; version++ {
			f.Add(SetVersion(bytes.Clone(s.bytes), version))
		}
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		r := NewReader(bytes.NewReader(stream))
		for {
			fr, err := r.Next()
			if err != nil {
				return
			}
			again, err := recode(fr)
			if err != nil {
				continue
			}
			want := make([]byte, HeaderBytes, HeaderBytes+len(fr.Body))
			want = append(want, fr.Body...)
			putHeader(want, fr.Type, fr.Count)

			// Encoding writes this protocol's fields. A frame of an earlier version has fewer.
			want[5] = fr.Version
			again = SetVersion(again, uint16(fr.Version))
			if len(fr.Body) < frameBytesSoft/2 && !bytes.Equal(again, want) {
				t.Fatalf("%v of version %d: decoded and encoded again differs:\n%x\n%x", fr.Type, fr.Version, again, want)
			}
		}
	})
}

// recode decodes a frame and encodes the messages again.
func recode(f Frame) ([]byte, error) {
	switch f.Type {
	case TypeFrontendHello:
		h, err := DecodeFrontendHello(f)
		return again(err, func() ([]byte, error) { return AppendFrontendHello(nil, &h) })
	case TypeBackendHello:
		h, err := DecodeBackendHello(f)
		return again(err, func() ([]byte, error) { return AppendBackendHello(nil, &h) })
	case TypeModels:
		m, err := DecodeModels(f)
		return again(err, func() ([]byte, error) { return AppendModels(nil, m) })
	case TypePeers:
		m, err := DecodePeers(nil, f)
		return again(err, func() ([]byte, error) { return AppendPeers(nil, m) })
	case TypeWelcome:
		m, err := DecodeWelcome(f)
		return AppendWelcome(nil, m), err
	case TypeRefusal:
		m, err := DecodeRefusal(f)
		return AppendRefusal(nil, m), err
	case TypeSubmit, TypeEarlySubmit:
		m, err := DecodeSubmits(nil, f)
		return AppendSubmits(nil, m), err
	case TypeCancel:
		m, err := DecodeCancels(nil, f)
		return AppendCancels(nil, m), err
	case TypeOutcome:
		m, err := DecodeOutcomes(nil, f)
		return AppendOutcomes(nil, m), err
	case TypeExecute:
		m, err := DecodeExecutes(nil, f)
		return again(err, func() ([]byte, error) { return AppendExecutes(nil, m), nil })
	case TypeDone:
		m, err := DecodeDones(nil, f)
		return again(err, func() ([]byte, error) { return AppendDones(nil, m), nil })
	case TypePing:
		m, err := DecodePing(f)
		return AppendPing(nil, m), err
	case TypeLead:
		m, err := DecodeLead(f)
		return AppendLead(nil, m), err
	case TypeFollow:
		m, err := DecodeFollow(f)
		return AppendFollow(nil, m), err
	case TypeStandbyHello:
		h, err := DecodeStandbyHello(f)
		return again(err, func() ([]byte, error) { return AppendStandbyHello(nil, &h) })
	case TypeLearned:
		m, err := DecodeLearned(f)
		return again(err, func() ([]byte, error) { return AppendLearned(nil, m) })
	case TypePlacement:
		m, err := DecodePlacements(f)
		return AppendPlacements(nil, m), err
	case TypePlacementReport:
		m, err := DecodePlacementReports(f)
		return again(err, func() ([]byte, error) { return AppendPlacementReports(nil, m) })
	case TypeModelCommand, TypeModelAnswer, TypeUnserved, TypeSpareOffer, TypeSpareStart, TypeSpareEnd, TypePlanRecord:
		return recodeControl(f)
	case TypeLoadable:
		m, err := DecodeLoadables(f)
		return again(err, func() ([]byte, error) { return AppendLoadables(nil, m) })
	default:
		m, err := DecodePong(f)
		return AppendPong(nil, m), err
	}
}

// recodeControl is recode for messages that control models.
func recodeControl(f Frame) ([]byte, error) {
	switch f.Type {
	case TypeModelCommand:
		m, err := DecodeModelCommands(f)
		return again(err, func() ([]byte, error) { return AppendModelCommands(nil, m) })
	case TypeModelAnswer:
		m, err := DecodeModelAnswers(f)
		return again(err, func() ([]byte, error) { return AppendModelAnswers(nil, m) })
	}
	switch f.Type {
	case TypeSpareOffer:
		m, err := DecodeSpareOffers(f)
		return again(err, func() ([]byte, error) { return AppendSpareOffers(nil, m) })
	case TypeSpareStart:
		m, err := DecodeSpareStarts(nil, f)
		return AppendSpareStarts(nil, m), err
	case TypePlanRecord:
		m, err := DecodePlanRecord(f)
		return again(err, func() ([]byte, error) { return AppendPlanRecord(nil, &m) })
	case TypeSpareEnd:
		m, err := DecodeSpareEnds(nil, f)
		return AppendSpareEnds(nil, m), err
	}
	u, err := DecodeUnserved(f)
	return again(err, func() ([]byte, error) { return AppendUnserved(nil, u) })
}

func again(err error, encode func() ([]byte, error)) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	return encode()
}

func FuzzResult(f *testing.F) {
	f.Add(ResultHeader{ID: 5}.Append(nil))
	f.Add(ResultHeader{ID: 5, Staged: true, Stages: Stages{1, 2, 3}}.Append(nil))
	f.Add(append(ResultHeader{ID: 5, Output: 2}.Append(nil), 1, 2))
	f.Fuzz(func(t *testing.T, msg []byte) {
		h, out, err := DecodeResult(msg)
		if err == nil && !bytes.Equal(append(h.Append(nil), out...), msg) {
			t.Fatalf("%x decodes to %+v and encodes differently", msg, h)
		}
	})
}

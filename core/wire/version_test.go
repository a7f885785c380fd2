package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"downbeat.dev/core/model"
)

// TestEarlierVersionIsRead shows that a peer of the previous version sends the same messages under its own number.
func TestEarlierVersionIsRead(t *testing.T) {
	hello, err := AppendFrontendHello(nil, &FrontendHello{Version: Version, Name: "f"})
	if err != nil {
		t.Fatal(err)
	}
	SetHelloVersion(hello, VersionMin)
	stream := AppendPing(hello, Ping{3})
	stream = append(stream[:len(hello):len(hello)], SetVersion(stream[len(hello):], VersionMin)...)
	r := NewReader(bytes.NewReader(stream))
	f, err := r.Next()
	if err != nil {
		t.Fatal(err)
	}
	if h, err := DecodeFrontendHello(f); err != nil || h.Version != VersionMin || h.Name != "f" || stream[5] != VersionMin {
		t.Errorf("%+v, %v", h, err)
	}
	if f, err = r.Next(); err != nil || f.Type != TypePing {
		t.Errorf("%v, %v", f.Type, err)
	}
	stream[5] = VersionMin - 1
	if _, err := NewReader(bytes.NewReader(stream)).Next(); !errors.Is(err, ErrVersion) {
		t.Errorf("two versions before: %v", err)
	}
}

// TestGoldenOfVersionsBefore shows that messages of a peer of the previous version still mean the same, so that a
// cluster can be upgraded part by part. The bytes are those that the previous version pinned. A field that was added
// to a message since must be read according to the frame's version.
func TestGoldenOfVersionsBefore(t *testing.T) {
	for version := VersionMin; version < Version; version++ {
		text, err := os.ReadFile(fmt.Sprintf("testdata/golden-%d.txt", version))
		if err != nil {
			t.Fatal(err)
		}
		decodeGolden(t, string(text), uint16(version))
	}
}

func decodeGolden(t *testing.T, text string, version uint16) {
	now := map[string]sample{}
	for _, s := range samples(t) {
		now[s.name] = s
	}
	for line := range strings.Lines(text) {
		name, digits, _ := strings.Cut(strings.TrimSpace(line), " ")
		b, err := hex.DecodeString(digits)
		s, known := now[name]
		if err != nil || !known {
			continue // a message of the data plane
		}
		got, err := s.decode(frameOf(t, b))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := s.want
		switch h := want.(type) { // hellos contain their version
		case FrontendHello:
			h.Version = version
			want = h
		case BackendHello:
			h.Version = version
			want = h
		case StandbyHello:
			h.Version = version
			want = h
		}
		if !reflect.DeepEqual(normal(got), normal(want)) {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
	}
}

// TestEarlierVersionIsWritten shows that a peer of the previous version gets the messages that it knows, without
// later fields, whatever is between them.
func TestEarlierVersionIsWritten(t *testing.T) {
	infos := []model.Info{{ID: 3, Name: "strict", SLOBinds: true, Priority: 200, QueueMax: 7, Reason: "x", Family: "f", Accuracy: 0.5},
		{ID: 4, Name: "f", Variants: []uint32{3}}}
	models, err := AppendModels(AppendPing(nil, Ping{1}), infos)
	if err != nil {
		t.Fatal(err)
	}
	peers, err := AppendPeers(models, []Peer{{Frontend: 3, DataAddr: "a", Staged: true}})
	if err != nil {
		t.Fatal(err)
	}
	r := NewReader(bytes.NewReader(SetVersion(AppendPing(peers, Ping{2}), VersionMin)))
	for _, want := range []Type{TypePing, TypeModels, TypePeers, TypePing} {
		f, err := r.Next()
		if err != nil || f.Type != want || f.Version != VersionMin {
			t.Fatalf("%v of version %d, %v; want %v", f.Type, f.Version, err, want)
		}
		if want == TypePeers {
			if got, err := DecodePeers(nil, f); err != nil || !reflect.DeepEqual(got, []Peer{{Frontend: 3, DataAddr: "a"}}) {
				t.Errorf("%+v, %v", got, err)
			}
		}
		if want != TypeModels {
			continue
		}
		if got, err := DecodeModels(f); err != nil || !reflect.DeepEqual(got, []model.Info{{ID: 3, Name: "strict"}}) {
			t.Errorf("%+v, %v", got, err)
		}
	}

	h := BackendHello{Version: Version, Name: "b", Failed: infos}
	hello, err := AppendBackendHello(nil, &h)
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeBackendHello(frameOf(t, SetHelloVersion(hello, VersionMin)))
	if err != nil || got.Version != VersionMin || got.Name != "b" || got.Failed != nil {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestPinnedWorkIsWithheld shows that a scheduler before version 10, which would order the steps of pinned spare work on any
// GPU, is told that there is no such work; other work it gets as ever.
func TestPinnedWorkIsWithheld(t *testing.T) {
	m := []SpareOffer{{Work: 1, Step: 7, Weight: 1}, {Work: 2, Step: 8, Weight: 1, GPU: 2}}
	frames, err := AppendSpareOffers(AppendPing(nil, Ping{1}), m)
	if err != nil {
		t.Fatal(err)
	}
	r := NewReader(bytes.NewReader(SetVersion(frames, PinnedVersion-1)))
	if f, err := r.Next(); err != nil || f.Type != TypePing {
		t.Fatal(f.Type, err)
	}
	f, err := r.Next()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := DecodeSpareOffers(f); err != nil || !reflect.DeepEqual(got, []SpareOffer{m[0], {Work: 2, Weight: 1}}) {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestReadyInIsLeftOut shows that a peer before version 10 gets submits without ReadyIn, between other messages, and
// that a frame of its version has none.
func TestReadyInIsLeftOut(t *testing.T) {
	m := []Submit{{ID: 1, Budget: 7}, {ID: 2, Budget: 8, ReadyIn: 3}}
	frames := AppendSubmits(AppendSubmits(AppendPing(nil, Ping{1}), m), m[:1])
	want := [][]Submit{nil, {{ID: 1, Budget: 7}, {ID: 2, Budget: 8}}, m[:1]}
	r := NewReader(bytes.NewReader(SetVersion(bytes.Clone(frames), ReadyVersion-1)))
	for i := range want {
		f, err := r.Next()
		if err != nil || f.Version != ReadyVersion-1 {
			t.Fatalf("frame %d: version %d, %v", i, f.Version, err)
		}
		if got, err := DecodeSubmits(nil, f); i > 0 && (err != nil || !reflect.DeepEqual(got, want[i])) {
			t.Errorf("frame %d: %+v, %v", i, got, err)
		}
	}

	none := appendFixed(nil, TypeEarlySubmit, m[:1], earlySubmitBytes, putEarlySubmit)
	if got, err := DecodeSubmits(nil, frameOf(t, none)); !errors.Is(err, ErrMalformed) {
		t.Errorf("a ReadyIn of 0 in every message: %+v, %v", got, err)
	}
}

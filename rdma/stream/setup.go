package stream

import (
	"encoding/binary"
	"fmt"

	"downbeat.dev/rdma/memory"
)

// SetupOp is one step of the set-up of a queue pair.
type SetupOp uint8

const (
	SetupOffer SetupOp = 1 + iota
	SetupAccept
	SetupRefuse
	SetupBroken
)

// PairEnd describes one end of a queue pair to the other end.
type PairEnd struct {
	GID                [16]byte
	QPN, PSN, LID, MTU uint32
	ReadsIn, ReadsOut  uint32 // how many READs it serves and posts at a time
}

// Setup is the body of KindVerbs.
type Setup struct {
	Op  SetupOp
	End PairEnd
	Why string // cut to the length of its field
}

const whyMax = SetupBytes - 8 - 40

// Append encodes the frame, its header included.
func (v Setup) Append(b []byte) []byte {
	why := v.Why[:min(len(v.Why), whyMax)]
	b = Frame{Body: SetupBytes, Kind: KindVerbs}.Append(b)

	b = append(b, byte(v.Op), byte(len(why)), 0, 0, 0, 0, 0, 0)
	b = append(b, v.End.GID[:]...)
	for _, x := range []uint32{v.End.QPN, v.End.PSN, v.End.LID, v.End.MTU, v.End.ReadsIn, v.End.ReadsOut} {
		b = binary.LittleEndian.AppendUint32(b, x)
	}
	b = append(b, why...)
	return append(b, make([]byte, whyMax-len(why))...)
}

// ParseSetup decodes a body of KindVerbs.
func ParseSetup(b []byte) (Setup, error) {
	v := Setup{Op: SetupOp(b[0])}
	if v.Op < SetupOffer || v.Op > SetupBroken || int(b[1]) > whyMax {
		return v, fmt.Errorf("%w: verbs set-up %d with %d bytes of reason", memory.ErrProtocol, b[0], b[1])
	}

	copy(v.End.GID[:], b[8:])
	for i, x := range []*uint32{&v.End.QPN, &v.End.PSN, &v.End.LID, &v.End.MTU, &v.End.ReadsIn, &v.End.ReadsOut} {
		*x = binary.LittleEndian.Uint32(b[24+4*i:])
	}

	// A card uses 24 bits of these numbers, 16 of a LID and five packet sizes; the driver gets nothing larger.
	if v.End.QPN>>24 != 0 || v.End.PSN>>24 != 0 || v.End.LID>>16 != 0 || v.End.MTU > 5 {
		return v, fmt.Errorf("%w: queue pair %+v", memory.ErrProtocol, v.End)
	}
	v.Why = string(b[48 : 48+int(b[1])])
	return v, nil
}

// Granted is the body of KindGranted: the layout of a segment's slots, and the right to read it.
type Granted struct {
	memory.Layout
	Rkey uint32 // verbs
	Base uint64 // verbs: the segment's address
}

// Append encodes the frame, including its header. key is the key of the request for the segment.
func (g Granted) Append(b []byte, key uint64) []byte {
	b = Frame{Body: GrantedBytes, Kind: KindGranted, ID: key}.Append(b)
	for _, v := range []int{g.Index, g.Stride, g.Slots, 0} {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(g.Rkey))
	return binary.LittleEndian.AppendUint64(b, g.Base)
}

// ParseGranted checks only the layout itself; the code that maps or reads the segment checks it against the memory.
func ParseGranted(b []byte) (Granted, error) {
	var v [3]int
	for i := range v {
		v[i] = int(binary.LittleEndian.Uint32(b[4*i:]))
	}

	g := Granted{Layout: memory.Layout{Index: v[0], Stride: v[1], Slots: v[2]},
		Rkey: uint32(binary.LittleEndian.Uint64(b[16:])), Base: binary.LittleEndian.Uint64(b[24:])}
	return g, g.Check()
}

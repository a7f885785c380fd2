package wire

// downgrades convert a frame into one of an earlier version, for each type of message that has gained fields since.
var downgrades = [typeEnd]func(dst []byte, f Frame, version uint16) []byte{
	TypeModels:     downgrade(DecodeModels, appendModels),
	TypeLoadable:   downgrade(DecodeLoadables, appendLoadables),
	TypeUnserved:   downgrade(DecodeUnserved, appendUnserved),
	TypeSpareOffer: downgrade(DecodeSpareOffers, appendSpareOffers),

	TypeBackendHello: downgrade(DecodeBackendHello, func(dst []byte, h BackendHello, version uint16) ([]byte, error) {
		return appendBackendHello(dst, &h, version)
	}),
	TypePeers:       downgrade(func(f Frame) ([]Peer, error) { return DecodePeers(nil, f) }, appendPeers),
	TypeEarlySubmit: downgrade(func(f Frame) ([]Submit, error) { return DecodeSubmits(nil, f) }, appendSubmitsWithoutReadyIn),
}

// SetVersion converts whole frames, which this process has encoded, to an earlier version, for a peer that knows no
// later one. It returns them, in the same memory unless a message has gained fields since.
func SetVersion(frames []byte, version uint16) []byte {
	out, copied := frames, false
	for at := 0; at < len(frames); {
		frame := frames[at : at+HeaderBytes+int(le.Uint32(frames[at:]))]
		convert := downgrades[frame[4]]

		// Most messages are the same in every version: only the header's byte changes, in place.
		if convert != nil && version < Version && !copied {
			out, copied = append([]byte(nil), frames[:at]...), true
		}
		at += len(frame)

		frame[5] = byte(version)
		switch {
		case copied && convert != nil:
			whole := Frame{Type: Type(frame[4]), Count: int(le.Uint16(frame[6:])), Version: Version, Body: frame[HeaderBytes:]}
			out = convert(out, whole, version)
		case copied:
			out = append(out, frame...)
		}
	}
	return out
}

// downgrade returns a conversion that decodes a frame and encodes it again. That takes time, but only for peers of an
// earlier version.
func downgrade[M any](decode func(Frame) (M, error), encode func([]byte, M, uint16) ([]byte, error)) func([]byte, Frame, uint16) []byte {
	return func(dst []byte, f Frame, version uint16) []byte {
		if m, err := decode(f); err == nil {
			dst, _ = encode(dst, m, version)
		}
		return dst
	}
}

// appendSubmitsWithoutReadyIn appends a frame of submits for versions before 10, which do not know ReadyIn.
func appendSubmitsWithoutReadyIn(dst []byte, m []Submit, version uint16) ([]byte, error) {
	at := len(dst)
	dst = appendFixed(dst, TypeSubmit, m, submitBytes, putSubmit)
	dst[at+5] = byte(version)
	return dst, nil
}

// SetHelloVersion does the same for a hello, whose body contains the version too.
func SetHelloVersion(hello []byte, version uint16) []byte {
	// Every hello's body starts with the version.
	hello = SetVersion(hello, version)
	le.PutUint16(hello[HeaderBytes:], version)
	return hello
}

package stream

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"downbeat.dev/rdma/memory"
)

// The handshake proves to both ends that the other holds the token, without sending it:
//
//	connector → acceptor: hello {magic, version, id, nonce}
//	acceptor → connector: hello, status
//	connector → acceptor: HMAC(token, "connector" | both hellos | binding)
//	acceptor → connector: status, HMAC(token, "acceptor" | both hellos | binding)
//
// The connector proves itself first. A stranger who connects therefore gets no value that depends on the token, against
// which guesses could be tested. Over TLS the binding is the connection's exported key, so that a relay cannot pass
// proofs on.
const (
	magic      = "DBRD"
	IDBytes    = 16
	nonceBytes = 32
	macBytes   = sha256.Size
	helloBytes = 4 + 2 + 2 + IDBytes + nonceBytes
)

// NodeID identifies one run of a node: Open draws it at random, and it is not secret. A process that restarts at the
// same address is another node, and must not receive data for the earlier one.
type NodeID [IDBytes]byte

const (
	greetOK = iota
	greetVersion
	greetAuth
	greetBusy
)

type hello struct {
	version uint16
	id      NodeID
	nonce   [nonceBytes]byte
}

func newHello(id NodeID) hello {
	h := hello{version: Version, id: id}
	rand.Read(h.nonce[:])
	return h
}

func (h hello) appendHello(b []byte) []byte {
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint16(b, h.version)
	b = append(b, 0, 0)
	b = append(b, h.id[:]...)
	return append(b, h.nonce[:]...)
}

// parseHello decodes helloBytes bytes. Another version is reported only after the magic fits.
func parseHello(b []byte) (hello, error) {
	var h hello
	if len(b) != helloBytes || string(b[:4]) != magic {
		return h, fmt.Errorf("%w: no downbeat data plane speaks there", memory.ErrProtocol)
	}
	h.version = binary.LittleEndian.Uint16(b[4:])
	copy(h.id[:], b[8:])
	copy(h.nonce[:], b[8+IDBytes:])
	if h.version != Version {
		return h, fmt.Errorf("%w: it speaks version %d, this is %d", ErrVersion, h.version, Version)
	}
	return h, nil
}

// computeProof is one end's HMAC over the data of both ends.
func computeProof(token, who string, connector, acceptor hello, binding []byte) []byte {
	// Both hellos hold a fresh nonce, so a recorded proof is useless in another connection.
	m := hmac.New(sha256.New, []byte(token))
	m.Write([]byte(who))
	m.Write(connector.appendHello(nil))
	m.Write(acceptor.appendHello(nil))
	m.Write(binding)
	return m.Sum(nil)
}

func statusError(status byte) error {
	switch status {
	case greetOK:
		return nil
	case greetVersion:
		return fmt.Errorf("%w: refused", ErrVersion)
	case greetAuth:
		return fmt.Errorf("%w: refused", ErrAuth)
	case greetBusy:
		return ErrBusy
	}
	return fmt.Errorf("%w: status %d", memory.ErrProtocol, status)
}

// Greet is the connector's side. It succeeds only with the wanted node, or with any if wanted is nil. The caller has
// set a deadline.
func Greet(s io.ReadWriter, id NodeID, wanted *NodeID, token string) (NodeID, error) {
	binding, err := tlsBinding(s)
	if err != nil {
		return NodeID{}, err
	}

	mine := newHello(id)
	if _, err := s.Write(mine.appendHello(nil)); err != nil {
		return NodeID{}, lostPeer(err)
	}

	var b [helloBytes + 1]byte
	if _, err := io.ReadFull(s, b[:]); err != nil {
		return NodeID{}, lostPeer(err)
	}

	theirs, err := parseHello(b[:helloBytes])
	if err != nil {
		return NodeID{}, err
	}
	if err := statusError(b[helloBytes]); err != nil {
		return NodeID{}, err
	}

	// Both proofs cover the id, so a node cannot impersonate another. The connector leaves before its proof, so the
	// acceptor never counts it as a peer.
	if wanted != nil && theirs.id != *wanted {
		return NodeID{}, fmt.Errorf("%w: node %x answers at the address of node %x", ErrPeerLost, theirs.id, *wanted)
	}

	if _, err := s.Write(computeProof(token, "connector", mine, theirs, binding)); err != nil {
		return NodeID{}, lostPeer(err)
	}

	var answer [1 + macBytes]byte
	if _, err := io.ReadFull(s, answer[:]); err != nil {
		return NodeID{}, lostPeer(err)
	}
	if err := statusError(answer[0]); err != nil {
		return NodeID{}, err
	}
	if !hmac.Equal(answer[1:], computeProof(token, "acceptor", mine, theirs, binding)) {
		return NodeID{}, fmt.Errorf("%w: the acceptor does not hold it", ErrAuth)
	}
	return theirs.id, nil
}

// Welcome is the acceptor's side. admit reports whether there is room for another peer.
func Welcome(s io.ReadWriter, id NodeID, token string, admit func() bool) (NodeID, error) {
	binding, err := tlsBinding(s)
	if err != nil {
		return NodeID{}, err
	}

	var b [helloBytes]byte
	if _, err := io.ReadFull(s, b[:]); err != nil {
		return NodeID{}, lostPeer(err)
	}
	theirs, err := parseHello(b[:])
	if errors.Is(err, memory.ErrProtocol) {
		return NodeID{}, err // not this protocol: no answer
	}

	mine := newHello(id)
	if err != nil {
		// As long as the answer of version 2, so that a peer of that version can parse it.
		answer := append(mine.appendHello(nil), greetVersion)
		s.Write(append(answer, make([]byte, macBytes)...))
		return NodeID{}, err
	}
	// Nothing sent so far depends on the token: the connector proves itself first.
	if _, err := s.Write(append(mine.appendHello(nil), greetOK)); err != nil {
		return NodeID{}, lostPeer(err)
	}

	var mac [macBytes]byte
	if _, err := io.ReadFull(s, mac[:]); err != nil {
		return NodeID{}, lostPeer(err)
	}

	// Take a place only after the proof, so that strangers take none.
	answer := make([]byte, 1+macBytes)
	switch {
	case !hmac.Equal(mac[:], computeProof(token, "connector", theirs, mine, binding)):
		answer[0] = greetAuth
	case !admit():
		answer[0] = greetBusy
	default:
		copy(answer[1:], computeProof(token, "acceptor", theirs, mine, binding))
	}

	if _, err := s.Write(answer); err != nil {
		return NodeID{}, lostPeer(err)
	}
	return theirs.id, statusError(answer[0])
}

func lostPeer(err error) error { return fmt.Errorf("%w: handshake: %w", ErrPeerLost, err) }

// tlsBinding completes the TLS handshake and derives the key that ties proofs to this connection.
func tlsBinding(s io.ReadWriter) ([]byte, error) {
	c, ok := s.(*tls.Conn)
	if !ok {
		return nil, nil
	}

	if err := c.Handshake(); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
			return nil, lostPeer(fmt.Errorf("tls: %w", err)) // the peer stalled or left: not a certificate error
		}
		return nil, fmt.Errorf("%w: tls: %w", ErrAuth, err)
	}

	state := c.ConnectionState()
	return state.ExportKeyingMaterial("EXPORTER-downbeat-rdma", nil, macBytes)
}

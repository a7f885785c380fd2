package rdma

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
)

// The handshake proves to both ends that the other holds the token, without sending it:
//
//	connector → acceptor: hello {magic, version, id, nonce}
//	acceptor → connector: hello, status, HMAC(token, "acceptor" | both hellos | binding)
//	connector → acceptor: HMAC(token, "connector" | both hellos | binding)
//	acceptor → connector: status
//
// Over TLS the binding is the connection's exported key, so that a relay cannot pass proofs on.
const (
	magic      = "DBRD"
	idBytes    = 16
	nonceBytes = 32
	macBytes   = sha256.Size
	helloBytes = 4 + 2 + 2 + idBytes + nonceBytes
)

// nodeID names a node; it is random and not secret.
type nodeID [idBytes]byte

const (
	greetOK = iota
	greetVersion
	greetAuth
	greetBusy
)

type hello struct {
	version uint16
	id      nodeID
	nonce   [nonceBytes]byte
}

func newHello(id nodeID) hello {
	h := hello{version: Version, id: id}
	rand.Read(h.nonce[:])
	return h
}

func (h hello) append(b []byte) []byte {
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
		return h, fmt.Errorf("%w: no downbeat data plane speaks there", ErrProtocol)
	}
	h.version = binary.LittleEndian.Uint16(b[4:])
	copy(h.id[:], b[8:])
	copy(h.nonce[:], b[8+idBytes:])
	if h.version != Version {
		return h, fmt.Errorf("%w: it speaks version %d, this is %d", ErrVersion, h.version, Version)
	}
	return h, nil
}

// proof is one end's HMAC over what both said.
func proof(token, who string, connector, acceptor hello, binding []byte) []byte {
	m := hmac.New(sha256.New, []byte(token))
	m.Write([]byte(who))
	m.Write(connector.append(nil))
	m.Write(acceptor.append(nil))
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
		return fmt.Errorf("%w: it has as many peers as it allows", ErrTooLarge)
	}
	return fmt.Errorf("%w: status %d", ErrProtocol, status)
}

// greet is the connector's side. The caller has set a deadline.
func greet(s io.ReadWriter, id nodeID, token string) (nodeID, error) {
	binding, err := tlsBinding(s)
	if err != nil {
		return nodeID{}, err
	}
	mine := newHello(id)
	if _, err := s.Write(mine.append(nil)); err != nil {
		return nodeID{}, lost(err)
	}
	var b [helloBytes + 1 + macBytes]byte
	if _, err := io.ReadFull(s, b[:]); err != nil {
		return nodeID{}, lost(err)
	}
	theirs, err := parseHello(b[:helloBytes])
	if err != nil {
		return nodeID{}, err
	}
	if err := statusError(b[helloBytes]); err != nil {
		return nodeID{}, err
	}
	if !hmac.Equal(b[helloBytes+1:], proof(token, "acceptor", mine, theirs, binding)) {
		return nodeID{}, fmt.Errorf("%w: the acceptor does not hold it", ErrAuth)
	}
	if _, err := s.Write(proof(token, "connector", mine, theirs, binding)); err != nil {
		return nodeID{}, lost(err)
	}
	if _, err := io.ReadFull(s, b[:1]); err != nil {
		return nodeID{}, lost(err)
	}
	return theirs.id, statusError(b[0])
}

// welcome is the acceptor's side. admit says whether there is room for one more peer.
func welcome(s io.ReadWriter, id nodeID, token string, admit func() bool) (nodeID, error) {
	binding, err := tlsBinding(s)
	if err != nil {
		return nodeID{}, err
	}
	var b [helloBytes]byte
	if _, err := io.ReadFull(s, b[:]); err != nil {
		return nodeID{}, lost(err)
	}
	theirs, err := parseHello(b[:])
	if errors.Is(err, ErrProtocol) {
		return nodeID{}, err // not one of ours: no answer
	}
	mine := newHello(id)
	answer := append(mine.append(nil), greetOK)
	if err != nil {
		answer[helloBytes] = greetVersion
		s.Write(append(answer, make([]byte, macBytes)...))
		return nodeID{}, err
	}
	answer = append(answer, proof(token, "acceptor", theirs, mine, binding)...)
	if _, err := s.Write(answer); err != nil {
		return nodeID{}, lost(err)
	}
	var mac [macBytes]byte
	if _, err := io.ReadFull(s, mac[:]); err != nil {
		return nodeID{}, lost(err)
	}
	status := byte(greetOK)
	if !hmac.Equal(mac[:], proof(token, "connector", theirs, mine, binding)) {
		status = greetAuth
	} else if !admit() {
		status = greetBusy
	}
	if _, err := s.Write([]byte{status}); err != nil {
		return nodeID{}, lost(err)
	}
	return theirs.id, statusError(status)
}

func lost(err error) error { return fmt.Errorf("%w: handshake: %w", ErrPeerLost, err) }

// tlsBinding completes the TLS handshake and derives what ties proofs to this connection.
func tlsBinding(s io.ReadWriter) ([]byte, error) {
	c, ok := s.(*tls.Conn)
	if !ok {
		return nil, nil
	}
	if err := c.Handshake(); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
			return nil, lost(fmt.Errorf("tls: %w", err)) // it stalled or left: certificates were not the matter
		}
		return nil, fmt.Errorf("%w: tls: %w", ErrAuth, err)
	}
	state := c.ConnectionState()
	return state.ExportKeyingMaterial("EXPORTER-downbeat-rdma", nil, macBytes)
}

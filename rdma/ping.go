package rdma

import (
	"errors"

	"downbeat.dev/rdma/memory"
	"downbeat.dev/rdma/stream"
)

// Ping asks the peer for nothing: done gets nil once the peer has answered, behind all that it was asked for
// before over its byte stream, or why it was lost. done is called as Read's is, within one process at once.
func (p *Peer) Ping(done func(error)) {
	if err := p.Err(); err != nil {
		done(err)
		return
	}
	p.link.ping(done)
}

// ping reads what nobody offers: the refusal is the answer.
func (c *conn) ping(done func(error)) {
	c.readStream(stream.Request{Reads: []Read{{Src: Remote{Key: memory.NoKey}}}, Done: func(err error) {
		if errors.Is(err, ErrNotOffered) {
			err = nil
		}
		done(err)
	}})
}

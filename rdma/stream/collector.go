package stream

const (
	messageKept = 1 << 20 // capacity kept for the next long message
	messageStep = 64 << 10
)

// collector assembles a long message.
type collector struct {
	msg  []byte
	left int // bytes still to come; 0: no message is being collected
	id   uint64
}

// beginMessage starts a message of size bytes.
func (c *collector) beginMessage(id uint64, size int) {
	c.left, c.id = size, id
	c.msg = c.msg[:0]
}

// nextMemory returns the memory for the next bytes. Memory grows with the bytes that have come, not with the length that
// the peer announced.
func (c *collector) nextMemory(atLeast int) []byte {
	// Doubling costs a long message few copies, and a false length next to nothing.
	n := min(c.left, max(atLeast, messageStep, len(c.msg)))
	if cap(c.msg)-len(c.msg) < min(c.left, max(atLeast, 1)) {
		grown := make([]byte, len(c.msg), len(c.msg)+n)
		copy(grown, c.msg)
		c.msg = grown
	}

	free := c.msg[len(c.msg):cap(c.msg)]
	return free[:min(len(free), c.left)]
}

// countRead counts n bytes read into nextMemory, and returns whether the message is complete.
func (c *collector) countRead(n int) bool {
	c.msg = c.msg[:len(c.msg)+n]
	c.left -= n
	return c.left == 0
}

// releaseMessage keeps the memory for the next message, unless it is large.
func (c *collector) releaseMessage() {
	if cap(c.msg) > messageKept {
		c.msg = nil
	}
}

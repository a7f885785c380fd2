package stream

const (
	messageKept = 1 << 20 // capacity kept for the next long message
	messageStep = 64 << 10
)

// collector puts a long message together.
type collector struct {
	msg  []byte
	left int // bytes that are still to come; 0: no message is being collected
	id   uint64
}

// beginMessage starts a message of size bytes.
func (c *collector) beginMessage(id uint64, size int) {
	c.left, c.id = size, id
	c.msg = c.msg[:0]
}

// tail is where the next bytes go. Memory grows with what has come, not with what the peer announced.
func (c *collector) tail(atLeast int) []byte {
	// To double what has come costs a long message few copies, and a lie about its length next to nothing.
	n := min(c.left, max(atLeast, messageStep, len(c.msg)))
	if cap(c.msg)-len(c.msg) < min(c.left, max(atLeast, 1)) {
		grown := make([]byte, len(c.msg), len(c.msg)+n)
		copy(grown, c.msg)
		c.msg = grown
	}

	free := c.msg[len(c.msg):cap(c.msg)]
	return free[:min(len(free), c.left)]
}

// got accounts n bytes that came into tail, and tells whether the message is whole.
func (c *collector) got(n int) bool {
	c.msg = c.msg[:len(c.msg)+n]
	c.left -= n
	return c.left == 0
}

// releaseMessage keeps the memory for the next message, unless it is much.
func (c *collector) releaseMessage() {
	if cap(c.msg) > messageKept {
		c.msg = nil
	}
}

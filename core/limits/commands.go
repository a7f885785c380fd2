package limits

// Commands counts the commands in progress of each session in one place, so that no session keeps others out. It is not
// safe for concurrent use.
type Commands struct {
	Most int // of all sessions
	all  int
	of   map[uint32]int // by session
}

// Begin counts a command of a session. It returns false if the session has as many in progress as there is room left: n
// sessions that take what they can leave an (n+1)-th of the room to others, and one alone gets half.
func (c *Commands) Begin(session uint32) bool {
	if c.of[session] >= c.Most-c.all {
		return false
	}
	if c.of == nil {
		c.of = map[uint32]int{}
	}
	c.of[session]++
	c.all++
	return true
}

// End counts that one has ended.
func (c *Commands) End(session uint32) {
	c.all--
	if c.of[session]--; c.of[session] == 0 {
		delete(c.of, session)
	}
}

// Of returns how many commands of a session are in progress.
func (c *Commands) Of(session uint32) int { return c.of[session] }

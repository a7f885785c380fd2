package cuda

// CopyBytes returns how many bytes the submission's copies move to the device and from it.
func (s *Submission) CopyBytes() (in, out int64) {
	for i := range s.commands {
		switch c := &s.commands[i]; c.op {
		case opCopyIn:
			in += int64(c.n)
		case opCopyOut:
			out += int64(c.n)
		}
	}
	return in, out
}

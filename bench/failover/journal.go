package failover

import (
	"fmt"
	"sync"
	"time"
)

// journal holds the processes' log lines with the time at which they were read. It is safe for concurrent use.
type journal struct {
	mu    sync.Mutex
	lines []line
}

type line struct {
	at   time.Time
	text string
}

func (j *journal) note(name, text string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line{time.Now(), name + ": " + text})
}

// between returns the lines between two times, each with its time since origin, in ms.
func (j *journal) between(origin time.Time, from, to time.Duration) (said []string) {
	j.mu.Lock()
	defer j.mu.Unlock()

	for _, l := range j.lines {
		if at := l.at.Sub(origin); at >= from && at <= to {
			said = append(said, fmt.Sprintf("%.1f %s", roundedMilliseconds(at), l.text))
		}
	}
	return said
}

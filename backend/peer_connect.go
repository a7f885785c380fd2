package backend

import (
	"context"
	"fmt"
	"slices"
	"time"

	"downbeat.dev/rdma"
)

// startConnecting starts an attempt unless one is in progress. f.mu is held.
func (f *peer) startConnecting() {
	if f.connecting {
		return
	}

	// Close waits for the attempt, and ends it through the context.
	f.connecting, f.began = true, time.Now()
	f.all.wait.Add(1)
	go func() {
		defer f.all.wait.Done()
		ctx, cancel := context.WithTimeout(f.all.ctx, connectMax)
		defer cancel()
		c, err := f.all.node.Connect(ctx, f.addr)
		if err != nil {
			f.notReached(err)
		}
		f.noteConnected(c, err)
	}()
}

// noteConnected ends an attempt: waiting reads are posted, or fail.
func (f *peer) noteConnected(c *rdma.Peer, err error) {
	f.mu.Lock()
	f.connecting = false

	if err != nil {
		f.tried = time.Now()
	} else {
		f.refusals = 0
		f.conn.Store(c)
	}

	// Taken under the lock: later ones find the connection, or start another attempt.
	waiting, queued := f.waiting, f.queuedMessages
	f.waiting, f.queuedMessages, f.queuedBytes = nil, nil, 0
	f.mu.Unlock()

	for _, g := range waiting {
		if err != nil {
			g.refuseReads(errNoConnection)
		} else {
			g.postChains(c)
		}
	}

	for _, message := range queued {
		if err == nil {
			_ = c.Send(message) // a lost frontend ends its requests itself
		}
	}
}

// notReached records a failed attempt to connect, and logs the first and some of the following.
func (f *peer) notReached(err error) {
	// Closing ends attempts, which says nothing about the frontend.
	if f.all.ctx.Err() != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refusals++
	if f.refusals == 1 || time.Since(f.warned) > refusedEvery {
		f.warned = time.Now()
		f.all.log.Warn("frontend cannot be reached: its requests fail here", "addr", f.addr, "attempts", f.refusals, "err", err)
	}
}

// queueMessage keeps a copy of a message until the frontend is connected. It returns false if no connection is in
// progress, or too much is kept, and returns the connection if it is open by now.
func (f *peer) queueMessage(parts [][]byte) (queued bool, c *rdma.Peer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c = f.conn.Load(); c != nil || !f.connecting || len(f.queuedMessages) >= queuedMessagesMax {
		return false, c
	}

	// A frontend that cannot be reached must not take the backend's memory.
	bytes := 0
	for _, part := range parts {
		bytes += len(part)
	}
	if f.queuedBytes+bytes > queuedBytesMax {
		return false, nil
	}
	f.queuedMessages, f.queuedBytes = append(f.queuedMessages, slices.Concat(parts...)), f.queuedBytes+bytes
	return true, nil
}

// dropLost drops a lost connection, so that the next read connects again.
func (f *peer) dropLost(err error) {
	if c := f.conn.Load(); c != nil && c.Err() != nil {
		// Another goroutine may have reconnected: drop only the lost one.
		f.conn.CompareAndSwap(c, nil)
		f.all.log.Debug("frontend lost", "addr", f.addr, "err", err)
	}
}

// sendMessage sends a message to the frontend, or keeps it for a connection in progress.
func (f *peer) sendMessage(parts [][]byte) error {
	c := f.conn.Load()
	if c == nil {
		var queued bool
		if queued, c = f.queueMessage(parts); queued {
			return nil
		}
	}
	if c == nil {
		return errNoConnection
	}

	if err := c.Send(parts...); err != nil {
		f.dropLost(err)
		return fmt.Errorf("send to %s: %w", f.addr, err)
	}
	return nil
}

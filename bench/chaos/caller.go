//go:build linux

package chaos

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"downbeat.dev/bench/chaos/account"
	"downbeat.dev/frontend"
)

// CallerConfig is what a caller's process is told, as JSON.
type CallerConfig struct {
	Scheduler string // addresses, separated by commas
	Data      string // where backends read inputs
	Token     string
	Model     string
	Rate      float64 // requests a second
	Bytes     int     // of an input
	Budget    time.Duration
	FirstID   uint64
	Seed      uint64
}

const (
	flushEvery  = 20 * time.Millisecond
	noiseEvery  = 5 * time.Millisecond
	readyMax    = 20 * time.Second
	buffersKept = 4096
)

// RunCaller is a caller's process: it sends requests as its commands say, and writes down each of them on books.
// Commands are lines: "rate R", "burst N"; at the end of commands it waits for what is under way and leaves.
func RunCaller(ctx context.Context, c CallerConfig, commands io.Reader, books io.Writer) error {
	dialed, cancel := context.WithTimeout(ctx, readyMax)
	defer cancel()
	client, err := frontend.Dial(dialed, frontend.Options{Scheduler: c.Scheduler, Token: c.Token, Name: "caller",
		Data: frontend.DataPlane{Listen: c.Data, Providers: []string{"tcp"}}})
	if err != nil {
		return fmt.Errorf("caller: %w", err)
	}

	// A request for a model that no backend serves yet is refused, which would count against the trial.
	for m := client.Model(c.Model, ""); m == nil || !m.Ready; m = client.Model(c.Model, "") {
		if dialed.Err() != nil {
			return errors.Join(fmt.Errorf("caller: model %q is not ready after %v", c.Model, readyMax), client.Close())
		}
		time.Sleep(10 * time.Millisecond)
	}

	call := &caller{config: c, client: client, books: account.NewWriter(books), stop: make(chan struct{}),
		kept: make(chan *frontend.Buffer, buffersKept)}
	call.setRate(c.Rate)

	// The parent waits for this record before it counts the caller as part of the trial.
	call.books.Write(account.Record{Kind: account.Ready, At: account.Now()})
	var background sync.WaitGroup
	background.Go(call.flush)
	background.Go(call.measureNoise)
	background.Go(call.sendRequests)

	// Commands end when the parent closes stdin. What is under way then still has the time of its deadline.
	err = call.obey(commands)
	close(call.stop)
	background.Wait()
	call.open.Wait()

	call.books.Write(account.Record{Kind: account.Left, At: account.Now()})

	// Every request has ended, so nobody puts a buffer back any more.
	close(call.kept)
	for b := range call.kept {
		b.Free()
	}
	return errors.Join(err, call.books.Flush(), client.Close())
}

// caller sends requests and writes its book.
type caller struct {
	config CallerConfig
	client *frontend.Client
	books  *account.Writer
	nextID atomic.Uint64
	rate   atomic.Pointer[float64]
	stop   chan struct{}
	open   sync.WaitGroup
	kept   chan *frontend.Buffer
}

func (c *caller) setRate(r float64) { c.rate.Store(&r) }

// obey does what commands say, until their end.
func (c *caller) obey(commands io.Reader) error {
	lines := bufio.NewScanner(commands)

	// Both commands carry exactly one number, so a line without one is refused before its word is read.
	for lines.Scan() {
		word, number, _ := strings.Cut(lines.Text(), " ")
		var value float64
		if _, err := fmt.Sscan(number, &value); err != nil {
			return fmt.Errorf("caller: %q: want rate R or burst N", lines.Text())
		}

		switch word {
		case "rate":
			c.setRate(value)
		case "burst":
			for range int(value) {
				c.open.Go(c.askOnce)
			}
		default:
			return fmt.Errorf("caller: %q: want rate R or burst N", lines.Text())
		}
	}
	return lines.Err()
}

// sendRequests sends requests at random moments, at the rate of the day, whatever becomes of them.
func (c *caller) sendRequests() {
	random := rand.New(rand.NewPCG(c.config.Seed, c.config.FirstID))
	next := time.Now()
	for {
		select {
		case <-c.stop:
			return
		default:
		}

		// Without a rate the schedule stands still: time spent silent is not made up for later.
		rate := *c.rate.Load()
		if rate <= 0 {
			time.Sleep(noiseEvery)
			next = time.Now()
			continue
		}

		// Arrivals are a Poisson process, open loop: a slow answer delays no later request.
		next = next.Add(time.Duration(random.ExpFloat64() / rate * float64(time.Second)))
		if late := time.Since(next); late > time.Second {
			next = next.Add(late) // a process that was stopped does not make up for it
		}
		time.Sleep(time.Until(next))
		c.open.Go(c.askOnce)
	}
}

// askOnce sends one request and writes down how it ended.
func (c *caller) askOnce() {
	id := c.config.FirstID + c.nextID.Add(1)
	in, err := c.buffer()
	if err != nil {
		fmt.Fprintln(os.Stderr, "caller: no buffer:", err)
		return // nothing was sent
	}

	// The bytes follow from the id, so the ledger tells a foreign output from the right one.
	account.Input(id, in.Bytes())

	// The record of the send goes into the book first: a request that never ends is found by it.
	now := account.Now()
	ctx, cancel := context.WithTimeout(context.Background(), c.config.Budget)
	defer cancel()
	c.books.Write(account.Record{Kind: account.Sent, ID: id, At: now, Until: now + int64(c.config.Budget), Size: c.config.Bytes})
	r, err := c.client.Do(ctx, frontend.Request{Model: c.config.Model, Input: in})

	// The clock is read before the book's lock is taken, so that the lock makes no request late.
	end := account.Record{Kind: account.Output, ID: id, At: account.Now(), Text: r.Data}
	if err != nil {
		end.Kind, end.Text = account.Ended, []byte(outcomeWord(err))
	}
	c.books.Write(end)
	r.Release()

	// The client registers memory for each new buffer; a kept one costs nothing on the next request.
	select {
	case c.kept <- in:
	default:
		in.Free()
	}
}

func (c *caller) buffer() (*frontend.Buffer, error) {
	select {
	case b := <-c.kept:
		return b, nil
	default:
		return c.client.Buffer(c.config.Bytes)
	}
}

// outcomeWord is an outcome in one word.
func outcomeWord(err error) string {
	var o *frontend.OutcomeError
	if !errors.As(err, &o) {
		return err.Error()[:min(60, len(err.Error()))]
	}

	word := o.Reason.String()
	if o.Local {
		word += "/local"
	}

	// A deadline that passed is what the reason says already; any other cause names the fault.
	if o.Cause != nil && !errors.Is(o.Cause, context.DeadlineExceeded) {
		word += "/explained"
	}
	return word
}

// flush hands the book over while the caller lives: what it wrote last is lost if it is killed.
func (c *caller) flush() {
	for {
		select {
		case <-c.stop:
			return
		case <-time.After(flushEvery):
			if c.books.Flush() != nil {
				return // nobody reads any more
			}
		}
	}
}

// measureNoise tells how late timers are here: an end that is no later than that is not the product's.
func (c *caller) measureNoise() {
	for last := int64(0); ; {
		before := account.Now()
		select {
		case <-c.stop:
			return
		case <-time.After(noiseEvery):
		}

		// Only a new maximum is written, which keeps the book short.
		if late := account.Now() - before - int64(noiseEvery); late > last {
			last = late
			c.books.Write(account.Record{Kind: account.Noise, At: before, Until: late})
		}
	}
}

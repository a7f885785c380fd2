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

// CallerConfig is the configuration of a caller's process, passed as JSON.
type CallerConfig struct {
	Scheduler string // addresses, separated by commas
	Data      string // address at which backends read inputs
	Token     string
	Model     string
	Rate      float64 // requests per second
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

// RunCaller runs a caller's process: it sends requests by its commands and writes a record of each to books. Commands
// are lines: "rate R", "burst N". At the end of the commands it waits for requests under way and leaves.
func RunCaller(ctx context.Context, c CallerConfig, commands io.Reader, books io.Writer) error {
	dialed, cancel := context.WithTimeout(ctx, readyMax)
	defer cancel()
	client, err := frontend.Dial(dialed, frontend.Options{Scheduler: c.Scheduler, Token: c.Token, Name: "caller",
		Data: frontend.DataPlane{Listen: c.Data, Providers: []string{"tcp"}}})
	if err != nil {
		return fmt.Errorf("caller: %w", err)
	}

	// Wait until a backend serves the model: earlier requests would be refused and count against the trial.
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

	// Commands end when the parent closes stdin. Requests under way still have until their deadlines.
	err = call.runCommands(commands)
	close(call.stop)
	background.Wait()
	call.open.Wait()

	call.books.Write(account.Record{Kind: account.Left, At: account.Now()})

	// Every request has ended, so no goroutine returns a buffer any more.
	close(call.kept)
	for b := range call.kept {
		b.Free()
	}
	return errors.Join(err, call.books.Flush(), client.Close())
}

// caller sends requests and records them.
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

// runCommands executes the commands until they end.
func (c *caller) runCommands(commands io.Reader) error {
	lines := bufio.NewScanner(commands)

	// Both commands have exactly one number, so reject a line without one first.
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

// sendRequests sends requests at random times, at the present rate, regardless of their outcomes.
func (c *caller) sendRequests() {
	random := rand.New(rand.NewPCG(c.config.Seed, c.config.FirstID))
	next := time.Now()
	for {
		select {
		case <-c.stop:
			return
		default:
		}

		// Without a rate the schedule stops: do not make up for silent time later.
		rate := *c.rate.Load()
		if rate <= 0 {
			time.Sleep(noiseEvery)
			next = time.Now()
			continue
		}

		// Arrivals are a Poisson process, open loop: a slow answer delays no later request.
		next = next.Add(time.Duration(random.ExpFloat64() / rate * float64(time.Second)))
		if late := time.Since(next); late > time.Second {
			next = next.Add(late) // do not make up for the time of a pause
		}
		time.Sleep(time.Until(next))
		c.open.Go(c.askOnce)
	}
}

// askOnce sends one request and records how it ended.
func (c *caller) askOnce() {
	id := c.config.FirstID + c.nextID.Add(1)
	in, err := c.buffer()
	if err != nil {
		fmt.Fprintln(os.Stderr, "caller: no buffer:", err)
		return // nothing was sent
	}

	// The id determines the bytes, so the ledger can tell a foreign output from the right one.
	account.Input(id, in.Bytes())

	// Record the send first, so that a request that never ends can be found.
	now := account.Now()
	ctx, cancel := context.WithTimeout(context.Background(), c.config.Budget)
	defer cancel()
	c.books.Write(account.Record{Kind: account.Sent, ID: id, At: now, Until: now + int64(c.config.Budget), Size: c.config.Bytes})
	r, err := c.client.Do(ctx, frontend.Request{Model: c.config.Model, Input: in})

	// Read the clock before taking the writer's lock, so that the lock makes no request late.
	end := account.Record{Kind: account.Output, ID: id, At: account.Now(), Text: r.Data}
	if err != nil {
		end.Kind, end.Text = account.Ended, []byte(outcomeWord(err))
	}
	c.books.Write(end)
	r.Release()

	// The client registers memory for each new buffer; reusing one costs nothing.
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

// outcomeWord returns an outcome in one word.
func outcomeWord(err error) string {
	var o *frontend.OutcomeError
	if !errors.As(err, &o) {
		return err.Error()[:min(60, len(err.Error()))]
	}

	word := o.Reason.String()
	if o.Local {
		word += "/local"
	}

	// The reason already covers an expired deadline; any other cause names the fault.
	if o.Cause != nil && !errors.Is(o.Cause, context.DeadlineExceeded) {
		word += "/explained"
	}
	return word
}

// flush writes the records regularly; a kill loses only the latest ones.
func (c *caller) flush() {
	for {
		select {
		case <-c.stop:
			return
		case <-time.After(flushEvery):
			if c.books.Flush() != nil {
				return // the reader has gone
			}
		}
	}
}

// measureNoise records how late timers are here: the product is not responsible for ends that are no later.
func (c *caller) measureNoise() {
	for last := int64(0); ; {
		before := account.Now()
		select {
		case <-c.stop:
			return
		case <-time.After(noiseEvery):
		}

		// Write only a new maximum, to keep the records short.
		if late := account.Now() - before - int64(noiseEvery); late > last {
			last = late
			c.books.Write(account.Record{Kind: account.Noise, At: before, Until: late})
		}
	}
}

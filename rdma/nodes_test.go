package rdma

import (
	"bytes"
	"testing"
)

// TestEveryNodeReadsAndOffers: every process is a node, so a reader may also offer, over the same connection. One
// backend reads a frontend's input. Another backend reads the first one's output one-sidedly and answers the
// frontend. So the place of an input and the destination of its answer may differ.
func TestEveryNodeReadsAndOffers(t *testing.T) {
	forAll(t, func(t *testing.T, c Config) {
		answers := make(chan []byte, 1)
		fc := c
		fc.Receive = func(_ *Peer, msg []byte) { answers <- bytes.Clone(msg) }
		frontend, first, second := open(t, fc), open(t, c), open(t, c)

		input := alloc(t, frontend, 150<<10)
		defer input.Free()
		fill(input.Bytes(), 1)
		source := connect(t, first, frontend.Addr())
		back := connect(t, second, first.Addr()) // the reader's own connection
		reply := connect(t, second, frontend.Addr())

		for round := range 3 {
			// The first backend reads the input and offers its result.
			middle := alloc(t, first, 150<<10)
			if err := wait(t, source, []Read{readOf(middle.Bytes(), input.Offer())}); err != nil {
				t.Fatal(round, err)
			}
			for i := range middle.Bytes() {
				middle.Bytes()[i] ^= 0x55
			}

			// The second backend reads the result, and nobody asks the frontend.
			last := alloc(t, second, 150<<10)
			if err := wait(t, back, []Read{readOf(last.Bytes(), middle.Offer())}); err != nil {
				t.Fatal(round, err)
			}
			if err := reply.Send(last.Bytes()); err != nil {
				t.Fatal(round, err)
			}

			got := <-answers
			for i, b := range input.Bytes() {
				if got[i] != b^0x55 {
					t.Fatalf("round %d over %s: byte %d of the answer is %d, want %d", round, back.Provider(), i, got[i], b^0x55)
				}
			}
			middle.Free()
			last.Free()
		}

		// The first backend also reads from the second: both ends of a pair may offer at once.
		there := connect(t, first, second.Addr())
		here := alloc(t, second, 5000)
		defer here.Free()
		fill(here.Bytes(), 2)
		if got, err := readInto(t, there, here.Offer()); err != nil || !bytes.Equal(got, here.Bytes()) {
			t.Fatalf("a backend that reads another one's memory is not read by it: %v", err)
		}
	})
}

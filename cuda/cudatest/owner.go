// Package cudatest starts another process that owns device memory, for tests of memory shared by processes: CUDA does
// not open a handle in the process that created it.
package cudatest

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"downbeat.dev/cuda"
)

// ownerVariable makes a test's binary an owner.
const ownerVariable = "DOWNBEAT_TEST_DEVICE_OWNER"

// Owner is a process that has one block of device memory.
type Owner struct {
	t      testing.TB
	in     io.WriteCloser
	out    *bufio.Reader
	Handle cuda.Handle
}

// ServeOwner makes the process an owner if it was started as one, and then does not return. TestMain of each package
// that starts owners calls it first.
func ServeOwner() {
	if os.Getenv(ownerVariable) == "" {
		return
	}
	if err := serveBlock(bufio.NewReader(os.Stdin)); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// StartOwner starts a process with content in a block of device memory, and ends it with the test.
func StartOwner(t testing.TB, content []byte) *Owner {
	t.Helper()
	if _, err := cuda.Count(); errors.Is(err, cuda.ErrNotSupported) {
		if os.Getenv("DOWNBEAT_REQUIRE_GPU") == "1" {
			t.Fatalf("DOWNBEAT_REQUIRE_GPU=1: %v", err)
		}
		t.Skip(err)
	}

	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), ownerVariable+"=1")
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	must(t, err)
	out, err := c.StdoutPipe()
	must(t, err)
	must(t, c.Start())

	t.Cleanup(func() {
		in.Close()
		if err := c.Wait(); err != nil {
			t.Errorf("the owner of device memory: %v", err)
		}
	})

	// The content is sent over the pipe, because an environment is too small for it.
	o := &Owner{t: t, in: in, out: bufio.NewReader(out)}
	_, err = fmt.Fprintf(in, "%x\n", content)
	must(t, err)
	copy(o.Handle[:], o.readLine())
	return o
}

// Content returns the block's current content.
func (o *Owner) Content() []byte {
	o.t.Helper()

	// Each further line requests the content.
	_, err := io.WriteString(o.in, "\n")
	must(o.t, err)
	return o.readLine()
}

func (o *Owner) readLine() []byte {
	o.t.Helper()
	line, err := o.out.ReadString('\n')
	must(o.t, err)
	b, err := hex.DecodeString(line[:len(line)-1])
	if err != nil {
		o.t.Fatal(line) // the owner's error
	}
	return b
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// serveBlock reads a block's content, in hexadecimal, and prints its handle, then the content for each further line.
func serveBlock(in *bufio.Reader) (err error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return err
	}
	b, err := hex.DecodeString(line[:len(line)-1])
	if err != nil {
		return err
	}
	d, err := cuda.Open(cuda.Config{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()

	m, err := d.Alloc(int64(len(b)))
	if err != nil {
		return err
	}
	defer m.Free()

	if err := copyBlock(d, len(b), func(s *cuda.Submission, st *cuda.Stream, host []byte) {
		copy(host, b)
		s.CopyIn(st, m.Address(), host)
	}, func([]byte) {}); err != nil {
		return err
	}

	h, err := m.Share()
	if err != nil {
		return err
	}
	fmt.Println(hex.EncodeToString(h[:]))

	for {
		if _, err := in.ReadString('\n'); err != nil {
			return nil // the test has ended
		}
		err := copyBlock(d, len(b), func(s *cuda.Submission, st *cuda.Stream, host []byte) { s.CopyOut(st, host, m.Address()) },
			func(host []byte) { fmt.Println(hex.EncodeToString(host)) })
		if err != nil {
			return err
		}
	}
}

// copyBlock has the device do one copy between n bytes of host memory and itself, then calls seen.
func copyBlock(d *cuda.Device, n int, command func(s *cuda.Submission, st *cuda.Stream, host []byte), seen func(host []byte)) error {
	st, err := d.NewStream()
	if err != nil {
		return err
	}
	defer st.Free()

	ev, err := d.NewEvent()
	if err != nil {
		return err
	}
	defer ev.Free()

	slab, err := d.AllocHost(int64(n))
	if err != nil {
		return err
	}
	defer slab.Free()

	var s cuda.Submission
	command(&s, st, slab.Bytes())
	s.Record(st, ev)

	if err := d.Submit(&s); err != nil {
		return err
	}
	if err := d.WaitFor(10*time.Second, ev); err != nil {
		return err
	}
	seen(slab.Bytes())
	return nil
}

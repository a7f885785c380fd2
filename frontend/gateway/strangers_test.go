package gateway

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"downbeat.dev/frontend"
	"downbeat.dev/frontend/gateway/oip"
	"downbeat.dev/internal/memcost"
)

// serving serves a gateway, changed before it starts, on both listeners and returns their addresses.
func serving(t *testing.T, o Options, change func(*Gateway)) (g *Gateway, rest, rpc string) {
	t.Helper()
	c, _ := client(t, compute)
	return servingClient(t, c, o, change)
}

// servingClient is serving for a given client.
func servingClient(t *testing.T, c *frontend.Client, o Options, change func(*Gateway)) (g *Gateway, rest, rpc string) {
	t.Helper()
	g = New(c, o)
	if change != nil {
		change(g)
	}
	var listeners [2]net.Listener
	for i := range listeners {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners[i] = ln
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- g.Serve(ctx, listeners[0], listeners[1]) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return g, listeners[0].Addr().String(), listeners[1].Addr().String()
}

// dialRPC returns a gRPC connection to an address.
func dialRPC(t *testing.T, addr string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// bytesCodec sends and receives messages as bytes.
type bytesCodec struct{}

func (bytesCodec) Marshal(v any) ([]byte, error)      { return *(v.(*[]byte)), nil }
func (bytesCodec) Unmarshal(data []byte, v any) error { *(v.(*[]byte)) = data; return nil }
func (bytesCodec) Name() string                       { return "proto" }

// TestStrangersMessageIsNotDecoded: a caller without the token sends a message that compresses a thousand to one. The
// headers suffice to refuse it, and none of it is decompressed or decoded.
func TestStrangersMessageIsNotDecoded(t *testing.T) {
	_, _, addr := serving(t, Options{Token: "a secret of the deployment"}, nil)
	conn := dialRPC(t, addr)
	body := bytes.Repeat([]byte{0x2a, 0x00}, 16<<20)
	var reply []byte
	err := conn.Invoke(context.Background(), oip.GRPCInferenceService_ModelInfer_FullMethodName, &body, &reply,
		grpc.ForceCodec(bytesCodec{}), grpc.UseCompressor("gzip"), grpc.MaxCallSendMsgSize(64<<20))
	if status.Code(err) != codes.Unauthenticated {
		t.Fatal(err)
	}
	took := memcost.Allocated(func() {
		err = conn.Invoke(context.Background(), oip.GRPCInferenceService_ModelInfer_FullMethodName, &body, &reply,
			grpc.ForceCodec(bytesCodec{}), grpc.UseCompressor("gzip"), grpc.MaxCallSendMsgSize(64<<20))
	})
	if status.Code(err) != codes.Unauthenticated {
		t.Fatal(err)
	}
	if took > 8<<20 { // of client and gateway together; a decoded message would take some GiB
		t.Errorf("%d MiB of memory for a message of a stranger", took>>20)
	}
}

// rawHTTP2 speaks HTTP/2 frame by frame.
type rawHTTP2 struct {
	net.Conn
	*http2.Framer
}

func dialHTTP2(t *testing.T, addr string) rawHTTP2 {
	t.Helper()
	s, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	_, _ = io.WriteString(s, http2.ClientPreface)
	f := rawHTTP2{s, http2.NewFramer(s, s)}
	if err := f.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return f
}

// begin starts a call on a stream with a message of a declared length.
func (f rawHTTP2) begin(t *testing.T, stream uint32, method string, length int, headers ...string) {
	t.Helper()
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	all := append([]string{":method", "POST", ":scheme", "http", ":path", method, ":authority", "x", "content-type", "application/grpc", "te", "trailers"}, headers...)
	for i := 0; i < len(all); i += 2 {
		_ = e.WriteField(hpack.HeaderField{Name: all[i], Value: all[i+1]})
	}
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true})
	prefix := make([]byte, 5)
	binary.BigEndian.PutUint32(prefix[1:], uint32(length))
	if err := f.WriteData(stream, false, prefix); err != nil {
		t.Fatal(err)
	}
}

// status reads frames until a stream's trailers and returns its grpc-status; "closed" if the connection ends.
func (f rawHTTP2) status() string {
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_ = f.SetReadDeadline(time.Now().Add(20 * time.Second))
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return "closed"
		}
		h, ok := frame.(*http2.MetaHeadersFrame)
		if !ok {
			continue
		}
		for _, field := range h.Fields {
			if field.Name == "grpc-status" {
				return field.Value
			}
		}
	}
}

// TestStrangerIsRefusedOnHeaders shows that a stranger's call is refused before any of its message arrives.
func TestStrangerIsRefusedOnHeaders(t *testing.T) {
	_, _, addr := serving(t, Options{Token: "a secret of the deployment"}, nil)
	for _, method := range []string{oip.GRPCInferenceService_ModelInfer_FullMethodName, oip.GRPCInferenceService_ModelStreamInfer_FullMethodName,
		oip.GRPCInferenceService_ServerLive_FullMethodName, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"} {
		f := dialHTTP2(t, addr)
		f.begin(t, 1, method, 60<<20)
		if got := f.status(); got != "16" {
			t.Errorf("%s: status %s, want 16, unauthenticated", method, got)
		}
	}
}

// TestStrangersBytesAreBounded shows that a stranger who asks for health with an endless message is disconnected
// after a few bytes.
func TestStrangersBytesAreBounded(t *testing.T) {
	_, _, addr := serving(t, Options{Token: "a secret of the deployment"}, nil)
	f := dialHTTP2(t, addr)
	f.begin(t, 1, "/grpc.health.v1.Health/Check", 60<<20)
	for range 63 { // as much as the first window allows
		_ = f.WriteData(1, false, make([]byte, 1<<10))
	}
	for range 1000 { // beyond the next calls' windows: the gateway must read all of it to notice
		_ = f.WriteRawFrame(0xee, 0, 0, make([]byte, 16<<10))
	}
	if got := f.status(); got != "closed" {
		t.Errorf("status %s after 16 MiB of a stranger, want a closed connection", got)
	}
}

// TestSlowMessageEnds shows that a message that does not arrive in time ends its call, and that the bytes that
// arrived no longer count.
func TestSlowMessageEnds(t *testing.T) {
	g, _, addr := serving(t, Options{Token: "secret"}, func(g *Gateway) { g.times.body = 100 * time.Millisecond })
	f := dialHTTP2(t, addr)
	f.begin(t, 1, oip.GRPCInferenceService_ModelInfer_FullMethodName, 60<<20, "authorization", "Bearer secret")
	if err := f.WriteData(1, false, make([]byte, 8<<10)); err != nil {
		t.Fatal(err)
	}
	if got := f.status(); got != "4" {
		t.Errorf("status %s, want 4, deadline exceeded", got)
	}
	f.Close()
	until(t, func() bool { runtime.GC(); return g.memory.used.Load() == 0 })
}

// TestMessagesAreBoundedInAll shows that all messages in progress share a bound. Above it, those that have been
// arriving longest end, and no other call begins until they have ended.
func TestMessagesAreBoundedInAll(t *testing.T) {
	const bound = 256 << 10
	g, _, addr := serving(t, Options{MemoryMax: bound}, nil)
	f := dialHTTP2(t, addr)
	for stream := uint32(1); stream < 64; stream += 2 {
		f.begin(t, stream, oip.GRPCInferenceService_ModelInfer_FullMethodName, 100<<10)
		if err := f.WriteData(stream, false, make([]byte, 16<<10)); err != nil {
			t.Fatal(err)
		}
		if used := g.memory.used.Load(); used > 2*bound {
			t.Fatalf("%d bytes are held, the bound is %d", used, bound)
		}
		time.Sleep(time.Millisecond)
	}
	if got := f.status(); got != "8" && got != "13" {
		t.Errorf("status %s, want 8, resource exhausted, or 13 for a message that was given up", got)
	}
	f.Close()
	until(t, func() bool { runtime.GC(); return g.memory.used.Load() == 0 })
	if _, err := oip.NewGRPCInferenceServiceClient(dialRPC(t, addr)).ModelInfer(context.Background(), sumRequest(floats(1, 2), floats(3, 4))); err != nil {
		t.Error(err)
	}
}

// TestSilentConnectionsAreClosed shows that a silent gRPC connection is closed as soon as a silent REST connection.
func TestSilentConnectionsAreClosed(t *testing.T) {
	if testing.Short() {
		t.Skip("takes as long as the limit")
	}
	t.Parallel()
	_, rest, rpc := serving(t, Options{}, nil)
	open := map[string]net.Conn{}
	for name, addr := range map[string]string{"REST": rest, "gRPC": rpc} {
		s, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		open[name] = s
	}
	for name, s := range open {
		_ = s.SetReadDeadline(time.Now().Add(headerTimeout + 20*time.Second))
		if _, err := io.Copy(io.Discard, s); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: a silent connection stays open", name)
		}
	}
}

func TestCgroupMemory(t *testing.T) {
	dir := t.TempDir()
	write := func(path, text string) string {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("v2/pod/memory.max", "1000\n")
	write("v2/pod/main/memory.max", "max\n")
	write("v1/memory/pod/memory.limit_in_bytes", "2000\n")
	write("inside/memory.max", "3000\n")
	for _, c := range []struct {
		groups, mount string
		want          int64
	}{
		{"0::/pod/main\n", "v2", 1000},
		{"9:name=systemd:/\n4:memory:/pod/x\n0::/\n", "v1", 2000},
		{"0::/../elsewhere\n", "inside", 3000},
		{"0::/\n", "nowhere", math.MaxInt64},
		{"", "v2", math.MaxInt64},
		{strings.Repeat(":", 100), "v2", math.MaxInt64},
	} {
		if got := cgroupMemory(write("groups", c.groups), filepath.Join(dir, c.mount)); got != c.want {
			t.Errorf("%q: %d, want %d", c.groups, got, c.want)
		}
	}
}

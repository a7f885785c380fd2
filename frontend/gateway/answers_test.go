package gateway

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/gateway/oip"
	"downbeat.dev/frontend/internal/echo"
	"downbeat.dev/internal/memcost"
)

// wideElements is the number of FP32 elements in a row of the model "wide": 1 MiB.
const wideElements = 256 << 10

// serveWide serves a model with one input byte and wideElements of output per row, and counts the rows that it runs.
func serveWide(t *testing.T, change func(*Gateway)) (g *Gateway, rest, rpc string, ran *atomic.Int64) {
	t.Helper()
	ran = new(atomic.Int64)
	row := make([]byte, 0, 4*wideElements)
	for i := range wideElements {
		row = append(row, floats(float32(i)*1.2345678e-5)...)
	}
	s, err := echo.New([]model.Info{{ID: 1, Name: "wide", Version: "1", SLO: int64(10 * time.Minute), BatchMax: 8, Ready: true, Platform: "test",
		Inputs: []model.Tensor{tensor("x", "UINT8", 1)}, Outputs: []model.Tensor{tensor("y", "FP32", wideElements)}}},
		func(wire.Submit, []byte) ([]byte, model.Reason) { ran.Add(1); return row, 0 })
	if err != nil {
		t.Fatal(err)
	}
	c, err := frontend.Dial(context.Background(), frontend.Options{Scheduler: s.Addr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); s.Close() })
	g, rest, rpc = servingClient(t, c, Options{}, change)
	return g, rest, rpc, ran
}

// wideBody is a request for rows of the wide model.
func wideBody(rows int, more string) string {
	return fmt.Sprintf(`{"inputs":[{"name":"x","datatype":"UINT8","shape":[%d,1],"data":[%s]}]%s}`, rows, strings.TrimSuffix(strings.Repeat("1,", rows), ","), more)
}

// TestAnswersAreBoundedBeforeTheyRun shows that an answer above the limit is refused before anything runs.
func TestAnswersAreBoundedBeforeTheyRun(t *testing.T) {
	g, rest, rpc, ran := serveWide(t, nil)
	url := "http://" + rest + "/v2/models/wide/infer"
	for name, body := range map[string]string{
		"1,024 rows":               wideBody(1024, ""),
		"as JSON":                  wideBody(32, ""), // 32 MiB, which take more than the allowed 64 MiB as text
		"1,024 rows, binary":       wideBody(1024, `,"parameters":{"binary_data_output":true}`),
		"1,024 rows, asked for it": wideBody(1024, `,"outputs":[{"name":"y"}]`),
	} {
		if code, _, text := call(t, "POST", url, strings.NewReader(body)); code != http.StatusRequestEntityTooLarge || !bytes.Contains(text, []byte("ask for fewer rows")) {
			t.Errorf("%s: %d %s", name, code, text)
		}
	}
	request := &oip.ModelInferRequest{ModelName: "wide", RawInputContents: [][]byte{make([]byte, 1024)},
		Inputs: []*oip.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "UINT8", Shape: []int64{1024, 1}}}}
	if _, err := oip.NewGRPCInferenceServiceClient(dialRPC(t, rpc)).ModelInfer(context.Background(), request); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("gRPC: %v", err)
	}
	if ran.Load() != 0 {
		t.Errorf("%d rows ran for refused calls", ran.Load())
	}

	if code, _, text := call(t, "POST", url, strings.NewReader(wideBody(32, `,"parameters":{"binary_data_output":true}`))); code != 200 {
		t.Errorf("32 rows, binary: %d %.200s", code, text)
	}
	until(t, func() bool { return g.memory.used.Load() == 0 })
}

// TestLongAnswersAreWrittenInPieces shows that a long JSON answer is correct, and is never entirely in memory.
func TestLongAnswersAreWrittenInPieces(t *testing.T) {
	_, rest, _, _ := serveWide(t, nil)
	url := "http://" + rest + "/v2/models/wide/infer"
	_, _, text := call(t, "POST", url, strings.NewReader(wideBody(1, "")))
	var answer struct {
		Outputs []struct {
			Shape []int64
			Data  []float32
		}
	}
	if err := json.Unmarshal(text, &answer); err != nil || len(answer.Outputs) != 1 || len(answer.Outputs[0].Data) != wideElements {
		t.Fatalf("%v: %d bytes", err, len(text))
	}
	for i, v := range answer.Outputs[0].Data {
		if v != float32(i)*1.2345678e-5 {
			t.Fatalf("element %d: %v", i, v)
		}
	}

	const rows = 4
	raw := uint64(rows * 4 * wideElements)
	took := uint64(math.MaxUint64)
	for range 5 { // the least, because pools may be emptied in between, and the race detector empties them on purpose
		took = min(took, memcost.Allocated(func() {
			r, err := http.Post(url, "application/json", strings.NewReader(wideBody(rows, "")))
			if err != nil {
				t.Error(err)
				return
			}
			defer r.Body.Close()
			if n, err := io.Copy(io.Discard, r.Body); err != nil || n < int64(2*raw) {
				t.Errorf("%d bytes: %v", n, err)
			}
		}))
	}
	if took > 4*raw { // the rows and their gathered copy; the whole text alone would take more
		t.Errorf("%d MiB of memory for an answer whose tensor has %d", took>>20, raw>>20)
	}
}

// TestReadersWhoNeverRead shows that a caller that never reads is disconnected, and that its answer's memory becomes
// free.
func TestReadersWhoNeverRead(t *testing.T) {
	g, rest, rpc, _ := serveWide(t, func(g *Gateway) { g.times.answer = time.Second })

	s, err := net.Dial("tcp", rest)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_ = s.(*net.TCPConn).SetReadBuffer(4096)
	body := wideBody(16, `,"parameters":{"binary_data_output":true}`)
	fmt.Fprintf(s, "POST /v2/models/wide/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	until(t, func() bool { return g.memory.used.Load() >= 16<<20 })
	until(t, func() bool { return g.memory.used.Load() == 0 })

	request, err := proto.Marshal(&oip.ModelInferRequest{ModelName: "wide", RawInputContents: [][]byte{make([]byte, 16)},
		Inputs: []*oip.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "UINT8", Shape: []int64{16, 1}}}})
	if err != nil {
		t.Fatal(err)
	}

	// A stream of inferences, which may last for days, is cut off like a single call: its second answer is queued
	// behind the first.
	for method, calls := range map[string]int{oip.GRPCInferenceService_ModelInfer_FullMethodName: 1, oip.GRPCInferenceService_ModelStreamInfer_FullMethodName: 2} {
		f := dialHTTP2(t, rpc) // its window is 64 KiB
		f.begin(t, 1, method, len(request))
		for i := range calls {
			if i > 0 {
				if err := f.WriteData(1, false, binary.BigEndian.AppendUint32([]byte{0}, uint32(len(request)))); err != nil {
					t.Fatal(err)
				}
			}
			if err := f.WriteData(1, calls == 1, request); err != nil {
				t.Fatal(err)
			}
		}
		until(t, func() bool { return g.memory.used.Load() >= 16<<20 })
		until(t, func() bool { runtime.GC(); return g.memory.used.Load() == 0 })
	}
}

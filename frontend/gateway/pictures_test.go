package gateway

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"image"
	"image/color"
	"image/png"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/gateway/oip"
	"downbeat.dev/frontend/internal/echo"
)

// photoModels are: photo, which returns its picture's values; two, whose picture lies behind a text; and plain, which
// takes no pictures.
func photoModels() []model.Info {
	photo := model.Tensor{Name: "image", Datatype: "UINT8", Shape: []int64{4, 6, 3}, Picture: &model.Picture{Channels: model.ChannelsRGB, Scale: 1, Std: [3]float32{1, 1, 1}}}
	return []model.Info{
		{ID: 1, Name: "photo", Version: "1", SLO: int64(10 * time.Minute), BatchMax: 8, Ready: true, Platform: "test",
			Inputs: []model.Tensor{photo}, Outputs: []model.Tensor{tensor("same", "UINT8", 72)}},
		{ID: 2, Name: "two", Version: "1", SLO: int64(10 * time.Minute), BatchMax: 8, Ready: true, Platform: "test", InputMax: 200,
			Inputs: []model.Tensor{tensor("text", "BYTES", 1), photo}, Outputs: []model.Tensor{tensor("same", "UINT8", 72)}},
		{ID: 3, Name: "plain", Version: "1", SLO: int64(10 * time.Minute), BatchMax: 8, Ready: true, Platform: "test",
			Inputs: []model.Tensor{tensor("image", "UINT8", 4, 6, 3)}, Outputs: []model.Tensor{tensor("same", "UINT8", 72)}},
	}
}

func servePhotos(t *testing.T, o Options, change func(*Gateway)) (g *Gateway, rest, rpc string, s *echo.System) {
	t.Helper()
	s, err := echo.New(photoModels(), func(_ wire.Submit, in []byte) ([]byte, model.Reason) { return slices.Clone(in[len(in)-72:]), 0 })
	if err != nil {
		t.Fatal(err)
	}
	c, err := frontend.Dial(context.Background(), frontend.Options{Scheduler: s.Addr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); s.Close() })
	g, rest, rpc = servingClient(t, c, o, change)
	return g, "http://" + rest + "/v2/models/", rpc, s
}

// photo returns a PNG of 6 × 4 pixels and its values; seed makes it differ from others.
func photo(t testing.TB, seed uint8) (file, values []byte) {
	t.Helper()
	p := image.NewNRGBA(image.Rect(0, 0, 6, 4))
	for i := range 24 {
		c := color.NRGBA{uint8(i) + seed, uint8(3*i) ^ seed, uint8(200 - i), 255}
		p.SetNRGBA(i%6, i/6, c)
		values = append(values, c.R, c.G, c.B)
	}
	var b bytes.Buffer
	if err := png.Encode(&b, p); err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), values
}

// texts returns elements of BYTES in their raw form.
func texts(all ...[]byte) (raw []byte) {
	for _, text := range all {
		raw = append(le.AppendUint32(raw, uint32(len(text))), text...)
	}
	return raw
}

func base64Of(file []byte) string { return base64.StdEncoding.EncodeToString(file) }

// photoInput describes an input of pictures in JSON; more is its data or its parameters.
func photoInput(rows int, more string) string {
	return fmt.Sprintf(`{"name":"image","datatype":"BYTES","shape":[%d],%s}`, rows, more)
}

// answered returns the values of an answer in JSON.
func answered(t testing.TB, text []byte) (values []byte, shape []int64) {
	t.Helper()
	var a struct {
		Outputs []struct {
			Shape []int64
			Data  []int
		}
	}
	if err := json.Unmarshal(text, &a); err != nil || len(a.Outputs) != 1 {
		t.Fatalf("%v: %.200s", err, text)
	}
	for _, v := range a.Outputs[0].Data {
		values = append(values, byte(v))
	}
	return values, a.Outputs[0].Shape
}

// TestPicturesBecomeTensors shows that a picture gives the same answer in every form that the protocols have.
func TestPicturesBecomeTensors(t *testing.T) {
	g, url, rpc, _ := servePhotos(t, Options{}, nil)
	file, values := photo(t, 0)
	other, otherValues := photo(t, 77)
	both := append(slices.Clone(values), otherValues...)

	head := `{"inputs":[` + photoInput(2, fmt.Sprintf(`"parameters":{"binary_data_size":%d}`, len(texts(file, other)))) + `]}`
	two := fmt.Sprintf(`{"inputs":[%s,{"name":"text","datatype":"BYTES","shape":[2,1],"data":["a","long text"]}]}`, photoInput(2, fmt.Sprintf(`"data":[%q,%q]`, base64Of(file), base64Of(other))))
	for name, c := range map[string]struct {
		path, body string
		header     []string
		want       []byte
		shape      []int64
	}{
		"JSON":             {"photo/infer", `{"inputs":[` + photoInput(1, fmt.Sprintf(`"data":[%q]`, base64Of(file))) + `]}`, nil, values, []int64{1, 72}},
		"JSON, two rows":   {"photo/infer", `{"inputs":[` + photoInput(2, fmt.Sprintf(`"data":[%q,%q]`, base64Of(file), base64Of(other))) + `]}`, nil, both, []int64{2, 72}},
		"JSON, [rows, 1]":  {"photo/infer", fmt.Sprintf(`{"inputs":[{"name":"image","datatype":"BYTES","shape":[2,1],"data":[[%q],[%q]]}]}`, base64Of(file), base64Of(other)), nil, both, []int64{2, 72}},
		"binary":           {"photo/infer", head + string(texts(file, other)), []string{headerLength, fmt.Sprint(len(head))}, both, []int64{2, 72}},
		"behind a text":    {"two/infer", two, nil, both, []int64{2, 72}},
		"the file itself":  {"photo/infer", string(file), []string{"Content-Type", "image/png"}, values, []int64{1, 72}},
		"a tensor as ever": {"photo/infer", fmt.Sprintf(`{"inputs":[{"name":"image","datatype":"UINT8","shape":[1,4,6,3],"data":[%s]}]}`, strings.Trim(strings.ReplaceAll(fmt.Sprint(values), " ", ","), "[]")), nil, values, []int64{1, 72}},
	} {
		code, _, text := call(t, "POST", url+c.path, strings.NewReader(c.body), c.header...)
		if code != http.StatusOK {
			t.Errorf("%s: %d %s", name, code, text)
			continue
		}
		if got, shape := answered(t, text); !bytes.Equal(got, c.want) || !slices.Equal(shape, c.shape) {
			t.Errorf("%s: shape %v, %v", name, shape, got)
		}
	}

	code, _, text := call(t, "POST", url+"photo/generate", strings.NewReader(fmt.Sprintf(`{"image":%q}`, base64Of(file))))
	if want := strings.ReplaceAll(fmt.Sprint(values), " ", ","); code != http.StatusOK || !strings.Contains(string(text), `"same":`+want) {
		t.Errorf("generate: %d %s", code, text)
	}

	service := oip.NewGRPCInferenceServiceClient(dialRPC(t, rpc))
	for name, r := range map[string]*oip.ModelInferRequest{
		"bytes_contents":     {Inputs: []*oip.ModelInferRequest_InferInputTensor{{Name: "image", Datatype: "BYTES", Shape: []int64{2}, Contents: &oip.InferTensorContents{BytesContents: [][]byte{file, other}}}}},
		"raw_input_contents": {Inputs: []*oip.ModelInferRequest_InferInputTensor{{Name: "image", Datatype: "BYTES", Shape: []int64{2, 1}}}, RawInputContents: [][]byte{texts(file, other)}},
	} {
		r.ModelName = "photo"
		answer, err := service.ModelInfer(context.Background(), r)
		if err != nil || !bytes.Equal(answer.RawOutputContents[0], both) || !slices.Equal(answer.Outputs[0].Shape, []int64{2, 72}) {
			t.Errorf("gRPC, %s: %v, %v", name, answer, err)
		}
	}
	until(t, func() bool { return g.memory.used.Load() == 0 })
}

// TestPicturesThatAreRefused shows that each error names the input, the row and what is wrong, and that nothing runs.
func TestPicturesThatAreRefused(t *testing.T) {
	g, url, rpc, s := servePhotos(t, Options{BodyMax: 1 << 20, MemoryMax: 8 << 20}, nil)
	file, _ := photo(t, 0)
	huge := slices.Clone(file)
	binary.BigEndian.PutUint32(huge[16:], 1<<20)
	binary.BigEndian.PutUint32(huge[20:], 1<<20)
	binary.BigEndian.PutUint32(huge[29:], crc32.ChecksumIEEE(huge[12:29]))
	large := slices.Clone(huge)
	binary.BigEndian.PutUint32(large[16:], 4000)
	binary.BigEndian.PutUint32(large[20:], 4000)
	binary.BigEndian.PutUint32(large[29:], crc32.ChecksumIEEE(large[12:29]))
	one := func(file []byte) string { return fmt.Sprintf(`"data":[%q]`, base64Of(file)) }
	many := fmt.Sprintf(`{"inputs":[{"name":"image","datatype":"BYTES","shape":[1024],"parameters":{"binary_data_size":%d}}]}`, 1024*len(texts(file)))

	for name, c := range map[string]struct {
		path, body string
		header     []string
		code       int
		want       string
	}{
		"no base64":             {"photo/infer", `{"inputs":[` + photoInput(1, `"data":["%%%"]`) + `]}`, nil, 400, `input "image": row 0: a picture in JSON must be base64`},
		"no picture":            {"photo/infer", `{"inputs":[` + photoInput(1, one([]byte("GIF89a"))) + `]}`, nil, 400, `input "image": row 0: picture: 6 bytes that begin with "GIF89a": neither a JPEG nor a PNG`},
		"the second is none":    {"photo/infer", `{"inputs":[` + photoInput(2, fmt.Sprintf(`"data":[%q,""]`, base64Of(file))) + `]}`, nil, 400, `row 1: picture: 0 bytes`},
		"too many pixels":       {"photo/infer", `{"inputs":[` + photoInput(1, one(huge)) + `]}`, nil, 413, `1048576 × 1048576 pixels: over the limit: must be at most 33554432 in all`},
		"too much memory":       {"photo/infer", `{"inputs":[` + photoInput(1, one(large)) + `]}`, nil, 413, `must be at most 8388608, the memory of all messages`},
		"fewer than rows":       {"photo/infer", `{"inputs":[` + photoInput(2, one(file)) + `]}`, nil, 400, `1 whole elements of BYTES data: shape [2] takes 2`},
		"no rows":               {"photo/infer", `{"inputs":[` + photoInput(0, `"data":[]`) + `]}`, nil, 400, `0 rows: must be within 1 and 1024`},
		"the tensor's shape":    {"photo/infer", fmt.Sprintf(`{"inputs":[{"name":"image","datatype":"BYTES","shape":[1,4,6,3],%s}]}`, one(file)), nil, 400, `must be the number of rows, each of which is a picture, or [-1 4 6 3] of UINT8`},
		"another datatype":      {"photo/infer", `{"inputs":[{"name":"image","datatype":"FP32","shape":[1,4,6,3],"data":[1]}]}`, nil, 400, `must be UINT8, or BYTES with a JPEG or a PNG for each row`},
		"a model without":       {"plain/infer", `{"inputs":[` + photoInput(1, one(file)) + `]}`, nil, 400, `datatype "BYTES": must be UINT8`},
		"a file, model without": {"plain/infer", string(file), []string{"Content-Type", "image/png"}, 400, `header Content-Type: "image/png": the model must have one input`},
		"a file cut":            {"photo/infer", string(file[:len(file)-30]), []string{"Content-Type", "image/png"}, 400, `row 0: picture: `},
		"no data":               {"photo/infer", `{"inputs":[{"name":"image","datatype":"BYTES","shape":[1]}]}`, nil, 400, `has no data`},
		"binary cut":            {"photo/infer", `{"inputs":[` + photoInput(1, `"parameters":{"binary_data_size":3}`) + `]}abc`, []string{headerLength, "91"}, 400, "0 whole elements"},
		"1,024 rows":            {"photo/infer", many + strings.Repeat(string(texts(file)), 1024), []string{headerLength, fmt.Sprint(len(many))}, 200, ""},
	} {
		if strings.Contains(c.body, "abc") {
			c.header[1] = fmt.Sprint(len(c.body) - 3)
		}
		before := s.Submits()
		code, _, text := call(t, "POST", url+c.path, strings.NewReader(c.body), c.header...)
		if code != c.code || !strings.Contains(string(bytes.ReplaceAll(text, []byte(`\"`), []byte(`"`))), c.want) {
			t.Errorf("%s: %d %.300s, want %d …%s…", name, code, text, c.code, c.want)
		}
		if c.code != 200 && name != "a file cut" && s.Submits() != before {
			t.Errorf("%s: %d requests were submitted", name, s.Submits()-before)
		}
	}

	_, err := oip.NewGRPCInferenceServiceClient(dialRPC(t, rpc)).ModelInfer(context.Background(), &oip.ModelInferRequest{ModelName: "photo",
		Inputs: []*oip.ModelInferRequest_InferInputTensor{{Name: "image", Datatype: "BYTES", Shape: []int64{1}}}, RawInputContents: [][]byte{texts(file[:len(file)-30])}})
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), `input "image": row 0: picture: png: invalid format`) {
		t.Errorf("gRPC: %v", err)
	}
	until(t, func() bool { return g.memory.used.Load() == 0 })
}

// TestTensorsOfPicturesAreBounded shows that small files cannot become tensors larger than a message may be.
func TestTensorsOfPicturesAreBounded(t *testing.T) {
	in := &inference{model: &frontend.Model{ModelInfo: photoModels()[0]}, rows: 30, decoding: 1, inputs: []input{{datatype: model.Bytes}}}
	if f := in.reservePictures(2000); f == nil || f.http != http.StatusRequestEntityTooLarge || !strings.Contains(f.text, "30 pictures become tensors of 2160 bytes: must be at most 2000") {
		t.Errorf("%v", f)
	}
	if f := in.reservePictures(2160); f != nil {
		t.Errorf("at the bound: %v", f)
	}
}

// TestAFloodOfPicturesLeavesOthersAlone shows that pictures wait for a decoder while tensors are answered, that they
// are submitted before, and that one whose turn does not come ends at its deadline.
func TestAFloodOfPicturesLeavesOthersAlone(t *testing.T) {
	g, url, _, s := servePhotos(t, Options{}, nil)
	file, values := photo(t, 0)
	for range cap(g.decoders) {
		g.decoders <- struct{}{} // the flood
	}

	// The model's first picture is not sent before it is decoded. Its deadline is one that a busy host reaches here.
	code, _, text := call(t, "POST", url+"photo/infer", strings.NewReader(`{"parameters":{"timeout":2000000},"inputs":[`+photoInput(1, fmt.Sprintf(`"data":[%q]`, base64Of(file)))+`]}`))
	if code != http.StatusGatewayTimeout || !strings.Contains(string(text), "row 0: picture: its turn to be decoded did not come before the deadline") {
		t.Errorf("%d %s", code, text)
	}

	before := s.Submits()
	answer := make(chan []byte, 1)
	go func() {
		_, _, text := call(t, "POST", url+"photo/infer", bytes.NewReader(file), "Content-Type", "image/png")
		answer <- text
	}()
	until(t, func() bool { return s.Submits() > before })
	if code, _, text := call(t, "POST", url+"plain/infer", strings.NewReader(`{"inputs":[{"name":"image","datatype":"UINT8","shape":[1,4,6,3],"data":[`+strings.TrimSuffix(strings.Repeat("7,", 72), ",")+`]}]}`)); code != http.StatusOK {
		t.Errorf("a tensor beside the flood: %d %s", code, text)
	}
	select {
	case text := <-answer:
		t.Fatalf("a picture was answered before a decoder was free: %s", text)
	default:
	}

	for range cap(g.decoders) {
		<-g.decoders
	}
	if got, _ := answered(t, <-answer); !bytes.Equal(got, values) {
		t.Errorf("after the flood: %v", got)
	}
	until(t, func() bool { return g.memory.used.Load() == 0 && len(g.decoders) == 0 })
}

// TestMetadataTellsOfPictures shows that clients learn which input takes pictures, over REST and over gRPC.
func TestMetadataTellsOfPictures(t *testing.T) {
	_, url, rpc, _ := servePhotos(t, Options{}, nil)
	_, _, text := call(t, "GET", url+"two", nil)
	if want := `{"name":"image","datatype":"UINT8","shape":[-1,4,6,3],"parameters":{"picture":"image/jpeg, image/png"}}`; strings.Count(string(text), want) != 1 || strings.Count(string(text), "parameters") != 1 {
		t.Errorf("%s, want %s", text, want)
	}

	m, err := oip.NewGRPCInferenceServiceClient(dialRPC(t, rpc)).ModelMetadata(t.Context(), &oip.ModelMetadataRequest{Name: "two"})
	if err != nil {
		t.Fatal(err)
	}
	for _, in := range m.Inputs {
		want := map[string]string{"image": pictureTypes}[in.Name]
		if got := in.Parameters[pictureKey].GetStringParam(); got != want || (len(in.Parameters) > 0) != (want != "") {
			t.Errorf("gRPC, input %s: pictures %q, want %q", in.Name, got, want)
		}
	}
	if len(m.Inputs) != 2 {
		t.Errorf("%d inputs, want 2", len(m.Inputs))
	}
}

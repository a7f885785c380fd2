//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"image"
	"image/png"
	"net/http"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"downbeat.dev/frontend/gateway/oip"
)

// TestConformancePictures shows that a real model gives a PNG of its input's size the answer that it gives the pixels,
// bit by bit, over REST and over gRPC; and that a family and a street of another size are answered, too.
func TestConformancePictures(t *testing.T) {
	s := serveReal(t, "../../models", nil)
	pixels := make([]byte, 32*48*3)
	for i := range pixels {
		pixels[i] = byte(i * i >> 3)
	}
	p := image.NewNRGBA(image.Rect(0, 0, 48, 32))
	for i := range 32 * 48 {
		copy(p.Pix[4*i:], append(pixels[3*i:3*i+3:3*i+3], 0xFF))
	}
	var file bytes.Buffer
	if err := png.Encode(&file, p); err != nil {
		t.Fatal(err)
	}

	const slow = `"parameters":{"timeout":60000000}`
	input := `{` + slow + `,"inputs":[{"name":"image","datatype":%q,"shape":%s,"data":[%s]}]}`
	numbers := strings.ReplaceAll(strings.Trim(fmt.Sprint(pixels), "[]"), " ", ",")
	text := `"` + base64.StdEncoding.EncodeToString(file.Bytes()) + `"`
	code, tensor := ask(t, s, "/v2/models/vehicle-m/infer", fmt.Sprintf(input, "UINT8", "[1,32,48,3]", numbers))
	if code != http.StatusOK {
		t.Fatalf("the tensor: %d %s", code, tensor)
	}
	if code, got := ask(t, s, "/v2/models/vehicle-m/infer", fmt.Sprintf(input, "BYTES", "[1]", text)); code != http.StatusOK || got != tensor {
		t.Errorf("REST: %d %s, want %s", code, got, tensor)
	}

	conn, err := grpc.NewClient(s.Config().GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	service := oip.NewGRPCInferenceServiceClient(conn)
	var answers [][]byte
	for _, in := range []*oip.ModelInferRequest_InferInputTensor{
		{Name: "image", Datatype: "UINT8", Shape: []int64{1, 32, 48, 3}, Contents: &oip.InferTensorContents{UintContents: widened(pixels)}},
		{Name: "image", Datatype: "BYTES", Shape: []int64{1}, Contents: &oip.InferTensorContents{BytesContents: [][]byte{file.Bytes()}}},
	} {
		answer, err := service.ModelInfer(context.Background(), &oip.ModelInferRequest{ModelName: "vehicle-m", Inputs: []*oip.ModelInferRequest_InferInputTensor{in},
			Parameters: map[string]*oip.InferParameter{"timeout": {ParameterChoice: &oip.InferParameter_Int64Param{Int64Param: 60_000_000}}}})
		if err != nil {
			t.Fatal(err)
		}
		answers = append(answers, answer.RawOutputContents[0])
	}
	if !bytes.Equal(answers[0], answers[1]) || len(answers[0]) != 6*4 {
		t.Errorf("gRPC: %x for the tensor, %x for the picture", answers[0], answers[1])
	}

	for model, name := range map[string]string{"vehicle": "vehicle-3-truck.png", "activity-m": "activity-3-running.png", "detector-s": "street-1.png"} {
		drawn, err := os.ReadFile("../../models/testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		text := `"` + base64.StdEncoding.EncodeToString(drawn) + `"`
		if code, got := ask(t, s, "/v2/models/"+model+"/infer", fmt.Sprintf(input, "BYTES", "[1]", text)); code != http.StatusOK || !strings.Contains(got, `"name":"scores"`) {
			t.Errorf("%s: %d %s", model, code, got)
		}
	}
	if _, got := ask(t, s, "/v2/models/vehicle", ""); !strings.Contains(got, `"parameters":{"picture":"image/jpeg, image/png"}`) {
		t.Errorf("metadata of a family: %s", got)
	}
}

func widened(values []byte) (all []uint32) {
	for _, v := range values {
		all = append(all, uint32(v))
	}
	return all
}

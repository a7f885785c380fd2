package gateway

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"text/tabwriter"
	"time"

	"downbeat.dev"
	"downbeat.dev/backend/emu"
	"downbeat.dev/bench/median"
	"downbeat.dev/core/model"
	"downbeat.dev/frontend/gateway/picture"
)

// PictureRow is what one picture costs, as the median of all rounds.
type PictureRow struct {
	Name   string
	Decode time.Duration // to make the tensor of it, on one core
	Forms  []PictureForm
}

// PictureForm is one way to send a picture over REST.
type PictureForm struct {
	Name  string
	Bytes int // of the body
	P50   time.Duration
}

// pictured is an input as ImageNet's models have it.
var pictured = model.Tensor{Name: "image", Datatype: model.FP32, Shape: []int64{3, 224, 224}, Picture: &model.Picture{ChannelsFirst: true, Channels: model.ChannelsRGB,
	Scale: 1. / 255, Mean: [3]float32{0.485, 0.456, 0.406}, Std: [3]float32{0.229, 0.224, 0.225}, ShorterSide: 256}}

const picturedModel = `platform: "emulated" max_batch_size: 1
input [ { name: "image" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] } ] output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]
parameters { key: "alpha_ms" value { string_value: "0.000001" } } parameters { key: "beta_ms" value { string_value: "0" } }
parameters { key: "slo_ms" value { string_value: "10000" } } parameters { key: "picture" value { string_value: "image" } }
parameters { key: "picture_scale" value { string_value: "1/255" } } parameters { key: "picture_shorter_side" value { string_value: "256" } }
parameters { key: "picture_mean" value { string_value: "0.485,0.456,0.406" } } parameters { key: "picture_std" value { string_value: "0.229,0.224,0.225" } }`

// RunPictures measures a caller that sends pictures in three forms to a model that takes no time: the file, the file in
// JSON, and the tensor as binary data. The forms alternate for each round of calls.
func RunPictures(ctx context.Context, rounds int) ([]PictureRow, error) {
	dir, err := emu.WriteRepository(map[string]string{noop: picturedModel})
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)

	serve := downbeat.Default()
	serve.Roles |= downbeat.Gateway
	serve.Models, serve.Emulate, serve.HTTP = dir, 1, "127.0.0.1:0"
	s, err := downbeat.Start(ctx, serve)
	if err != nil {
		return nil, err
	}
	defer s.Close()

	url := "http://" + s.Config().HTTP + "/v2/models/" + noop + "/infer"
	var rows []PictureRow
	for _, p := range drawPictures() {
		row, err := p.measure(ctx, url, rounds)
		if err != nil {
			return rows, fmt.Errorf("%s: %w", p.name, err)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// sentPicture is a file with the media type that it is sent as.
type sentPicture struct {
	name, kind string
	file       []byte
}

// drawPictures draws scenes with smooth areas and fine texture, which compress about as photos do.
func drawPictures() (all []sentPicture) {
	for _, size := range []image.Point{{224, 224}, {640, 480}, {1920, 1080}} {
		rng, p := rand.New(rand.NewPCG(1, 1)), image.NewNRGBA(image.Rect(0, 0, size.X, size.Y))
		for y := range size.Y {
			for x := range size.X {
				noise := uint8(rng.IntN(12))
				p.SetNRGBA(x, y, color.NRGBA{uint8(x*200/size.X) + noise, uint8(y*200/size.Y) + noise, uint8((x+y)%160) + noise, 255})
			}
		}

		// Encoding to memory does not fail.
		var photo, drawn bytes.Buffer
		_ = jpeg.Encode(&photo, p, &jpeg.Options{Quality: 85})
		_ = png.Encode(&drawn, p)
		all = append(all, sentPicture{fmt.Sprintf("JPEG %d × %d", size.X, size.Y), "image/jpeg", photo.Bytes()})
		if size.X == 640 {
			all = append(all, sentPicture{fmt.Sprintf("PNG %d × %d", size.X, size.Y), "image/png", drawn.Bytes()})
		}
	}
	return all
}

// pictureBody is a request's body with its headers.
type pictureBody struct {
	form   PictureForm
	header map[string]string
	body   []byte
}

// bodies returns a picture's forms.
func (p *sentPicture) bodies(tensor []byte) []pictureBody {
	text := fmt.Appendf(nil, `{"inputs":[{"name":"image","datatype":"BYTES","shape":[1],"data":["%s"]}]}`, base64.StdEncoding.EncodeToString(p.file))
	head := fmt.Sprintf(`{"inputs":[{"name":"image","datatype":"FP32","shape":[1,3,224,224],"parameters":{"binary_data_size":%d}}]}`, len(tensor))
	all := []pictureBody{
		{header: map[string]string{"Content-Type": p.kind}, body: p.file, form: PictureForm{Name: "the file"}},
		{body: text, form: PictureForm{Name: "base64 in JSON"}},
		{header: map[string]string{headerLength: strconv.Itoa(len(head))}, body: append([]byte(head), tensor...), form: PictureForm{Name: "tensor, binary"}},
	}

	for i := range all {
		all[i].form.Bytes = len(all[i].body)
	}
	return all
}

// measure measures decoding, and a call in each form.
func (p *sentPicture) measure(ctx context.Context, url string, rounds int) (PictureRow, error) {
	row, tensor := PictureRow{Name: p.name}, make([]byte, pictured.RowBytes())
	decode := func() error { return picture.Decode(ctx, tensor, p.file, &pictured) }
	if err := decode(); err != nil { // the tensor that is sent
		return row, err
	}

	all := p.bodies(tensor)
	delays, decodes := make([][]time.Duration, len(all)), []time.Duration(nil)
	for range rounds {
		began := time.Now()
		if err := decode(); err != nil {
			return row, err
		}
		decodes = append(decodes, time.Since(began))

		for i := range all {
			began := time.Now()
			if err := all[i].send(ctx, url); err != nil {
				return row, fmt.Errorf("%s: %w", all[i].form.Name, err)
			}
			delays[i] = append(delays[i], time.Since(began))
		}
	}

	row.Decode = median.Of(decodes)
	for i := range all {
		all[i].form.P50 = median.Of(delays[i])
		row.Forms = append(row.Forms, all[i].form)
	}
	return row, nil
}

// send makes one call.
func (b *pictureBody) send(ctx context.Context, url string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(b.body))
	if err != nil {
		return err
	}

	for key, value := range b.header {
		r.Header.Set(key, value)
	}
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer w.Body.Close()
	text, err := io.ReadAll(w.Body)
	if err == nil && w.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", w.StatusCode, text)
	}
	return err
}

// WritePictures prints rows for people.
func WritePictures(out io.Writer, rows []PictureRow) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "picture\tdecoding\tsent as\tbytes\tp50\t\n")
	for _, r := range rows {
		for _, f := range r.Forms {
			fmt.Fprintf(w, "%s\t%.2f ms\t%s\t%d\t%.2f ms\t\n", r.Name, r.Decode.Seconds()*1e3, f.Name, f.Bytes, f.P50.Seconds()*1e3)
		}
	}
	return w.Flush()
}

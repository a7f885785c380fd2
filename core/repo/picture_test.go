package repo

import (
	"fmt"
	"strings"
	"testing"

	"downbeat.dev/core/model"
)

// pictured returns a configuration with an image input and picture parameters, given as key and value in turn.
func pictured(input string, parameters ...string) string {
	text := "platform: \"onnxruntime_onnx\" max_batch_size: 8\ninput [ { name: \"image\" " + input + " } ]\noutput [ { name: \"y\" data_type: TYPE_FP32 dims: [ 1 ] } ]\n"
	for i := 0; i < len(parameters); i += 2 {
		text += fmt.Sprintf("parameters { key: %q value { string_value: %q } }\n", parameters[i], parameters[i+1])
	}
	return text
}

const (
	chwInput  = "data_type: TYPE_FP32 dims: [ 3, 224, 320 ]"
	hwcInput  = "data_type: TYPE_UINT8 dims: [ 32, 48, 3 ]"
	grayInput = "data_type: TYPE_FP32 dims: [ 28, 28, 1 ]"
)

func TestPicturesAreRead(t *testing.T) {
	one := [3]float32{1, 1, 1}
	for name, c := range map[string]struct {
		text string
		want model.Picture
	}{
		"bytes as they are": {pictured(hwcInput, "picture", "image"), model.Picture{Channels: "RGB", Scale: 1, Std: one}},
		"ImageNet": {pictured(chwInput, "picture", "image", "picture_scale", "1/255", "picture_mean", "0.485, 0.456, 0.406", "picture_std", "0.229,0.224,0.225", "picture_shorter_side", "340"),
			model.Picture{ChannelsFirst: true, Channels: "RGB", Scale: 1. / 255, Mean: [3]float32{0.485, 0.456, 0.406}, Std: [3]float32{0.229, 0.224, 0.225}, ShorterSide: 340}},
		"MobileNet": {pictured("data_type: TYPE_FP32 dims: [ 224, 224, 3 ]", "picture", "image", "picture_mean", "127.5", "picture_std", "127.5"),
			model.Picture{Channels: "RGB", Scale: 1, Mean: [3]float32{127.5, 127.5, 127.5}, Std: [3]float32{127.5, 127.5, 127.5}}},
		"Caffe":          {pictured(chwInput, "picture", "image", "picture_channels", "BGR"), model.Picture{ChannelsFirst: true, Channels: "BGR", Scale: 1, Std: one}},
		"gray":           {pictured(grayInput, "picture", "image", "picture_scale", "-0.5"), model.Picture{Channels: "GRAY", Scale: -0.5, Std: one}},
		"told by format": {pictured("data_type: TYPE_FP32 dims: [ 3, 3, 3 ] format: FORMAT_NCHW", "picture", "image"), model.Picture{ChannelsFirst: true, Channels: "RGB", Scale: 1, Std: one}},
	} {
		config, err := ParseConfig("c", []byte(c.text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if got := config.Inputs[0].Picture; got == nil || *got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}

	config, err := ParseConfig("c", []byte(pictured(hwcInput)))
	if err != nil || config.Inputs[0].Picture != nil {
		t.Errorf("without parameters: %+v, %v", config.Inputs[0].Picture, err)
	}
}

// TestPictureErrorsNameTheField shows that each error names the parameter, its value and what is allowed.
func TestPictureErrorsNameTheField(t *testing.T) {
	for name, c := range map[string]struct{ text, field, value, allowed string }{
		"no such input":       {pictured(hwcInput, "picture", "photo"), "picture", "photo", `want the name of an input: "image"`},
		"two dims":            {pictured("data_type: TYPE_FP32 dims: [ 28, 28 ]", "picture", "image"), "picture", "image", "want three dims"},
		"two channels":        {pictured("data_type: TYPE_FP32 dims: [ 28, 28, 2 ]", "picture", "image"), "picture", "image", "want format FORMAT_NHWC or FORMAT_NCHW"},
		"ambiguous dims":      {pictured("data_type: TYPE_FP32 dims: [ 3, 28, 3 ]", "picture", "image"), "picture", "image", "want format FORMAT_NHWC or FORMAT_NCHW"},
		"two channels, told":  {pictured("data_type: TYPE_FP32 dims: [ 28, 28, 2 ] format: FORMAT_NHWC", "picture", "image"), "picture", "image", "2 channels: RGB has 3"},
		"other datatype":      {pictured("data_type: TYPE_FP16 dims: [ 28, 28, 3 ]", "picture", "image"), "picture", "image", "want FP32 or UINT8"},
		"a variable dim":      {pictured("data_type: TYPE_FP32 dims: [ -1, 28, 3 ]", "picture", "image"), "picture", "image", "want inputs that are always there, of fixed dims"},
		"huge dims":           {pictured("data_type: TYPE_UINT8 dims: [ 20000, 28, 3 ]", "picture", "image"), "picture", "image", "at most 16384"},
		"a sequence":          {pictured(hwcInput, "picture", "image") + "sequence_batching { }", "picture", "image", "the model has sequence_batching"},
		"channels":            {pictured(hwcInput, "picture", "image", "picture_channels", "rgba"), "picture_channels", "rgba", "want RGB, BGR or GRAY"},
		"gray of three":       {pictured(hwcInput, "picture", "image", "picture_channels", "GRAY"), "picture", "image", "GRAY has 1"},
		"scale":               {pictured(chwInput, "picture", "image", "picture_scale", "0"), "picture_scale", "0", "want a number other than 0, or a fraction such as 1/255"},
		"scale of nothing":    {pictured(chwInput, "picture", "image", "picture_scale", "1/0"), "picture_scale", "1/0", "want a number other than 0"},
		"scale out of range":  {pictured(chwInput, "picture", "image", "picture_scale", "1e60"), "picture_scale", "1e60", "want a number other than 0"},
		"scale below range":   {pictured(chwInput, "picture", "image", "picture_scale", "1e-60"), "picture_scale", "1e-60", "want a number other than 0"},
		"scale of bytes":      {pictured(hwcInput, "picture", "image", "picture_scale", "1/255"), "picture_scale", "1/255", "is TYPE_UINT8: want TYPE_FP32, or none"},
		"mean of bytes":       {pictured(hwcInput, "picture", "image", "picture_mean", "3"), "picture_mean", "3", "is TYPE_UINT8: want TYPE_FP32, or none"},
		"two means":           {pictured(chwInput, "picture", "image", "picture_mean", "1,2"), "picture_mean", "1,2", "want one number, or 3 separated by commas, one for each of RGB"},
		"mean as a word":      {pictured(chwInput, "picture", "image", "picture_mean", "NaN"), "picture_mean", "NaN", "want one number, or 3"},
		"std of 0":            {pictured(chwInput, "picture", "image", "picture_std", "1,0,1"), "picture_std", "1,0,1", "want one number other than 0, or 3"},
		"gray with three std": {pictured(grayInput, "picture", "image", "picture_std", "1,1,1"), "picture_std", "1,1,1", "or 1 separated by commas, one for each of GRAY"},
		"side too short":      {pictured(chwInput, "picture", "image", "picture_shorter_side", "319"), "picture_shorter_side", "319", "want pixels from 320, the larger side of dims [3 224 320], to 16384"},
		"side too long":       {pictured(chwInput, "picture", "image", "picture_shorter_side", "16385"), "picture_shorter_side", "16385", "to 16384"},
		"side as a word":      {pictured(chwInput, "picture", "image", "picture_shorter_side", "crop"), "picture_shorter_side", "crop", "want pixels from 320"},
		"an unknown one":      {pictured(chwInput, "picture", "image", "picture_size", "5"), "picture_size", "5", "want one of picture_channels, picture_mean, picture_scale, picture_shorter_side, picture_std"},
		"without an input":    {pictured(chwInput, "picture_scale", "1/255"), "picture_scale", "1/255", "want parameter picture with the name of one"},
	} {
		_, err := ParseConfig("c", []byte(c.text))
		if err == nil || !strings.Contains(err.Error(), "parameters."+c.field+":") || !strings.Contains(err.Error(), c.value) || !strings.Contains(err.Error(), c.allowed) {
			t.Errorf("%s: %v, want parameters.%s, %q and %q", name, err, c.field, c.value, c.allowed)
		}
	}
}

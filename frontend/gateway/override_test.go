package gateway

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// TestConfigurationsInJSON: a configuration in JSON becomes the text of the same config.pbtxt.
func TestConfigurationsInJSON(t *testing.T) {
	for text, want := range map[string]string{
		`{}`: "",
		`{"name":"m","max_batch_size":8,"maxBatchSize":9}`:                                  `name: "m" max_batch_size: 8 max_batch_size: 9`,
		`{"input":[{"name":"x","data_type":"TYPE_FP32","dims":["16",-1],"optional":true}]}`: `input { name: "x" data_type: TYPE_FP32 dims: 16 dims: -1 optional: true }`,
		`{"parameters":{"slo_ms":{"string_value":"50"}}}`:                                   `parameters { key: "slo_ms" value { string_value: "50" } }`,
		`{"instance_group":[{"kind":"KIND_CPU","count":2}],"model_warmup":[]}`:              `instance_group { kind: KIND_CPU count: 2 }`,
		`{"version_policy":{"specific":{"versions":["3"]}},"backend":null}`:                 `version_policy { specific { versions: 3 } }`,
		`{"dynamicBatching":{"priorityQueuePolicy":{"1":{"timeoutAction":"DELAY"}}}}`:       `dynamic_batching { priority_queue_policy { key: 1 value { timeout_action: DELAY } } }`,
		`{"default_model_filename":"a\"b\\c\nd"}`:                                           `default_model_filename: "a\"b\\c\012d"`,
		`{"data_type":"not a name"}`:                                                        `data_type: "not a name"`,
	} {
		got, err := configText([]byte(text))
		if strings.Join(strings.Fields(got), " ") != want || err != nil {
			t.Errorf("%s: %q, %v; want %q", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		``: "unexpected EOF", `[]`: "want an object", `{"a":1`: "unexpected EOF", `{"a":1}}`: "want the end", `{"a b":1}`: "want a field's name",
		`{"dynamic_batching":{"priority_queue_policy":{"x":{}}}}`:   "want a whole number",
		strings.Repeat(`{"a":`, 20) + "1" + strings.Repeat("}", 20): "messages deep",
		`{"a":` + strings.Repeat("[", 8<<20):                        "arrays deep", // a guard against stack overflow
		`{"a":[` + strings.Repeat("1,", configValuesMax) + `1]}`:    "more than 8192 values",
	} {
		if got, err := configText([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v; want %q", text, got, err, want)
		}
	}
}

// FuzzConfigurationInJSON: for any input, the text is at most a few times as long, and has no field names that could
// be mistaken for others.
func FuzzConfigurationInJSON(f *testing.F) {
	f.Add([]byte(`{"input":[{"name":"x","data_type":"TYPE_FP32","dims":["16"]}],"parameters":{"a":{"string_value":"b"}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := configText(text)
		if err != nil {
			return
		}
		if len(got) > 64*len(text)+64 {
			t.Errorf("%d bytes of %d", len(got), len(text))
		}
		if utf8.Valid(text) && !utf8.ValidString(got) {
			t.Errorf("%q is not UTF-8", got)
		}
	})
}

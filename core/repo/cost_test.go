package repo

import (
	"strings"
	"testing"

	"downbeat.dev/internal/memcost"
)

// The memory that a file of the repository may take besides memcost.PerByte for each of its bytes: errors with the
// lines that they show, and buffers.
const (
	costFixed   = 128 << 10
	configFixed = 2 << 20 // fieldsMax empty messages
)

// FuzzParseConfigCost shows that no config.pbtxt takes more memory than its bytes allow.
func FuzzParseConfigCost(f *testing.F) {
	f.Add([]byte(full))
	for _, part := range []string{"input{}", "output<>", "input{dims:1}", "instance_group{}", "parameters{}", "a{", "[", "name:'a'", "input[", "dims:[1,", "dynamic_batching{preferred_batch_size:1}"} {
		f.Add([]byte(strings.Repeat(part, 1<<10)))
		f.Add([]byte("platform: \"emulated\" " + strings.Repeat(part, 1<<10) + tail))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		memcost.Check(t, text, configFixed, func() { _, _ = ParseConfig("c", text) })
	})
}

// FuzzParseProfilesCost shows that no profile.json takes more memory than its bytes allow.
func FuzzParseProfilesCost(f *testing.F) {
	f.Add([]byte(`{"format":1,"profiles":[{"host":"h","table_ns":[4,5],"r2":1}]}`))
	f.Add([]byte(`{"format":1,"profiles":[` + strings.Repeat("{},", 1<<12) + `{}]}`))
	f.Add([]byte(`{"format":1,"profiles":[{"table_ns":[` + strings.Repeat("1,", 1<<12) + `1]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		memcost.Check(t, text, costFixed, func() { _, _ = parseProfiles("p", text) })
	})
}

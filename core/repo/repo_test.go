package repo

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"
)

// write writes files to a new directory.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const good = "platform: \"onnxruntime_onnx\" max_batch_size: 8" + tail

func TestOpenReturnsTheGoodAndNamesTheBad(t *testing.T) {
	dir := write(t, map[string]string{
		"a/config.pbtxt": good, "a/1/model.onnx": "x", "a/2/model.onnx": "x", "a/10/model.onnx": "x", "a/02/model.onnx": "x", "a/notes/x": "",
		"b/config.pbtxt": "platform: \"onnxruntime_onnx\"\nmax_batch_size: x", "b/1/model.onnx": "x",
		"c/config.pbtxt": good,
		"d/config.pbtxt": good, "d/1/other": "x",
		"e/config.pbtxt": good + "name: \"f\"", "e/1/model.onnx": "x",
		"f/config.pbtxt": good + "version_policy { all {} } output { name: \"z\" data_type: TYPE_INT64 dims: 1 label_filename: \"l.txt\" }",
		"f/1/model.onnx": "x", "f/3/model.onnx": "x", "f/l.txt": "car\r\nvan\n",
		"g/1/model.onnx":      "x",
		"h h/config.pbtxt":    good,
		"i/config.pbtxt":      "platform: \"emulated\" parameters { key: \"alpha_ms\" value { string_value: \"1\" } } parameters { key: \"beta_ms\" value { string_value: \"2\" } } max_batch_size: 3" + tail,
		"j/config.pbtxt":      good + "version_policy { specific { versions: 7 } }",
		"j/1/model.onnx":      "x",
		"k/config.pbtxt":      good,
		"k/1/model.onnx":      "",
		"testdata/sample.png": "x",
		"README.md":           "x",
		".hidden/x":           "x",
	})
	r, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range r.Models {
		got = append(got, m.Name+"/"+m.Version)
	}
	if want := []string{"a/10", "f/1", "f/3", "i/1"}; !reflect.DeepEqual(got, want) {
		t.Errorf("models %v, want %v", got, want)
	}
	wants := map[string]string{
		"b": "config.pbtxt:2:17: max_batch_size: x: want an integer", "c": "has no version", "d": "model.onnx: no such file", "e": "name: \"f\": want the directory's name \"e\"",
		"g": "config.pbtxt: no such file", "h h": "name: \"h h\": want 1 to 128 letters", "j": "version 7 is not there; there are [1]", "k": "want a regular file that is not empty",
	}
	for _, e := range r.Errors {
		if !strings.Contains(e.Error(), wants[e.Model]) || wants[e.Model] == "" {
			t.Errorf("%s: %v, want …%s…", e.Model, e, wants[e.Model])
		}
		delete(wants, e.Model)
	}
	if len(wants) > 0 {
		t.Errorf("no error for %v", wants)
	}
	m, err := r.Find("f", "")
	if err != nil || m.Version != "3" || !reflect.DeepEqual(m.Labels("z"), []string{"car", "van"}) {
		t.Errorf("find f: %+v, %v", m, err)
	}
	if m, _ := r.Find("i", "1"); !reflect.DeepEqual(m.Table(), []time.Duration{3e6, 4e6, 5e6}) {
		t.Errorf("emulated table %v", m.Table())
	}
	if _, err := r.Find("f", "2"); err == nil || !strings.Contains(err.Error(), "it has 1, 3") {
		t.Errorf("find f 2: %v", err)
	}
	if _, err := r.Find("zz", ""); err == nil || !strings.Contains(err.Error(), "there are a, f, i") {
		t.Errorf("find zz: %v", err)
	}
}

func TestOpenWithoutADirectory(t *testing.T) {
	if _, err := Open(filepath.Join(t.TempDir(), "none")); err == nil || !strings.Contains(err.Error(), "open model repository") {
		t.Errorf("%v", err)
	}
}

func open1(t *testing.T, dir string) *Model {
	t.Helper()
	r, err := Open(dir)
	if err != nil || len(r.Errors) > 0 {
		t.Fatal(err, r.Errors)
	}
	m, err := r.Find("a", "")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func profileOf(host string, table ...time.Duration) Profile {
	return Profile{Host: host, Description: "d", TableNS: table, AlphaNS: 1, BetaNS: 2, R2: 0.99, Repeats: 10, Measured: time.Unix(0, 0).UTC().Format(time.RFC3339)}
}

func TestSetProfileKeepsOtherHosts(t *testing.T) {
	dir := write(t, map[string]string{"a/config.pbtxt": good, "a/1/model.onnx": "x"})
	m := open1(t, dir)
	for _, p := range []Profile{profileOf("h1", 1, 2), profileOf("h2", 3, 3), profileOf("h1", 4, 5)} {
		if err := m.SetProfile(p); err != nil {
			t.Fatal(err)
		}
	}
	m = open1(t, dir)
	if p, ok := m.Profile("h1"); !ok || !reflect.DeepEqual(p, profileOf("h1", 4, 5)) {
		t.Errorf("h1: %+v", p)
	}
	if p, ok := m.Profile("h2"); !ok || p.TableNS[0] != 3 || len(m.Profiles) != 2 {
		t.Errorf("h2: %+v of %d", p, len(m.Profiles))
	}
	if _, ok := m.Profile("h3"); ok {
		t.Error("h3 is there")
	}
	left, _ := os.ReadDir(m.VersionDir)
	if len(left) != 2 {
		t.Errorf("left over: %v", left)
	}
}

func TestSetProfileRefuses(t *testing.T) {
	m := open1(t, write(t, map[string]string{"a/config.pbtxt": good, "a/1/model.onnx": "x"}))
	for want, p := range map[string]Profile{
		"table_ns: profile: ℓ(2) = 1ns is less than ℓ(1) = 2ns": profileOf("h", 2, 1),
		"ℓ(1) = 0s, want more than 0":                           profileOf("h", 0),
		"0 entries: want 1 to 4096":                             profileOf("h"),
		"host: \"\"":                                            profileOf("", 1),
	} {
		if err := m.SetProfile(p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want …%s…", err, want)
		}
	}

	negative := profileOf("h", 1)
	negative.DynamicBytes = -1
	if err := m.SetProfile(negative); err == nil || !strings.Contains(err.Error(), "dynamic_bytes: -1: want 0 or more") {
		t.Errorf("negative bytes: %v", err)
	}
}

func TestOpenNamesABadProfile(t *testing.T) {
	for want, text := range map[string]string{
		"profiles[0].table_ns: profile: ℓ(2) = 4ns is less than ℓ(1) = 5ns": `{"format":1,"profiles":[{"host":"h","table_ns":[5,4]}]}`,
		"format: 2: want 1":          `{"format":2}`,
		"unknown field \"nonsense\"": `{"nonsense":1}`,
		"unexpected EOF":             `{"format":`,
	} {
		r, err := Open(write(t, map[string]string{"a/config.pbtxt": good, "a/1/model.onnx": "x", "a/1/profile.json": text}))
		if err != nil || len(r.Errors) != 1 || !strings.Contains(r.Errors[0].Error(), want) || !strings.Contains(r.Errors[0].Error(), "profile.json") {
			t.Errorf("got %v, want …%s…", r.Errors, want)
		}
	}
}

// TestWriteFileOnAFullDisk fills a 16 KiB file system.
func TestWriteFileOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=16k"); err != nil {
		t.Skipf("cannot mount a small file system here: %v", err)
	}
	defer syscall.Unmount(dir, syscall.MNT_DETACH)
	path := filepath.Join(dir, "profile.json")
	if err := WriteFile(path, []byte("old")); err != nil {
		t.Fatal(err)
	}
	err := WriteFile(path, make([]byte, 64<<10))
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "the disk is full") || !strings.Contains(err.Error(), "left as it was") {
		t.Errorf("error: %v", err)
	}
	if text, _ := os.ReadFile(path); string(text) != "old" {
		t.Errorf("old file now holds %q", text)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left over: %v", left)
	}
}

func FuzzParseProfiles(f *testing.F) {
	f.Add([]byte(`{"format":1,"profiles":[{"host":"h","table_ns":[4,5],"r2":1}]}`))
	f.Add([]byte(`{"format":1,"profiles":[{"host":"h","table_ns":[-4]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		ps, err := parseProfiles("p", text)
		if err != nil {
			return
		}
		for _, p := range ps {
			for i, v := range p.TableNS {
				if v <= 0 || i > 0 && v < p.TableNS[i-1] {
					t.Fatalf("accepted table %v", p.TableNS)
				}
			}
		}
	})
}

// TestLinksAreFollowed shows that directories and files of a repository may be links, as SECURITY.md says: the writer
// of the repository decides what is read.
func TestLinksAreFollowed(t *testing.T) {
	elsewhere := write(t, map[string]string{"m/config.pbtxt": good, "m/1/model.onnx": "x", "file": "y"})
	dir := write(t, map[string]string{"b/config.pbtxt": good, "b/1/notes": ""})
	for name, to := range map[string]string{"a": "m", "b/1/model.onnx": "file"} {
		if err := os.Symlink(filepath.Join(elsewhere, to), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}

	r, err := Open(dir)
	if err != nil || len(r.Models) != 2 || len(r.Errors) > 0 {
		t.Fatalf("a repository of links: %+v, %v", r, err)
	}
}

// TestConfigsFitMessages: a name that no message can carry is an error of its model. It would otherwise keep the hello of
// the backend from the scheduler, and end a process with the metrics of its scheduler.
func TestConfigsFitMessages(t *testing.T) {
	emulated := "platform: \"emulated\" parameters { key: \"alpha_ms\" value { string_value: \"1\" } } parameters { key: \"beta_ms\" value { string_value: \"2\" } } "
	output := " output { name: \"y\" data_type: TYPE_FP32 dims: 1 }"
	input := func(name string) string { return "input { name: \"" + name + "\" data_type: TYPE_FP32 dims: 1 } " }
	var many, states strings.Builder
	for i := range tensorsMax {
		many.WriteString(input(fmt.Sprint("x", i)))
	}
	for i := range 2 {
		fmt.Fprintf(&states, "state { input_name: \"s%d\" output_name: \"t%d\" data_type: TYPE_FP32 dims: 1 }", i, i)
	}

	for text, want := range map[string]string{
		input("caf\\303\\251") + output:                                        "",
		input("caf\\303\" \"\\251") + output:                                   "",
		input("caf\\351") + output:                                             "want UTF-8",
		input("caf\xe9") + output:                                              "want UTF-8",
		input(strings.Repeat("x", 256)) + output:                               "",
		input(strings.Repeat("x", 257)) + output:                               "257 bytes: want 1 to 256",
		many.String() + output:                                                 "",
		many.String() + output + "sequence_batching {" + states.String() + "}": "66 inputs",
		input("x") + output + "parameters { key: \"family\" value { string_value: \"caf\\351\" } }": "want UTF-8",
	} {
		_, err := ParseConfig("config.pbtxt", []byte(emulated+text))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, want …%s…", text, err, want)
		}
	}
}

// TestNoNameOfADirectoryIsMoreThanText: a name that is not UTF-8, as from an archive in another encoding, is listed as
// text, since messages and metrics take no other.
func TestNoNameOfADirectoryIsMoreThanText(t *testing.T) {
	dir := write(t, map[string]string{"a/config.pbtxt": good, "a/1/model.onnx": "x", "caf\xe9/config.pbtxt": good, "caf\xe9/1/model.onnx": "x"})
	r, err := Open(dir)
	if err != nil || len(r.Models) != 1 || len(r.Errors) != 1 || r.Errors[0].Model != "caf\uFFFD" {
		t.Errorf("%d models, %v, %v", len(r.Models), r.Errors, err)
	}
	if names, err := Names([]string{dir}); err != nil || !reflect.DeepEqual(names, []string{"a", "caf\uFFFD"}) {
		t.Errorf("%q, %v", names, err)
	}
}

// TestAPipeIsNoFile: a pipe in place of a file is an error of its model, and does not make the repository wait for a
// writer.
func TestAPipeIsNoFile(t *testing.T) {
	dir := write(t, map[string]string{"a/config.pbtxt": good, "a/1/model.onnx": "x", "b/1/model.onnx": "x"})
	if err := syscall.Mkfifo(filepath.Join(dir, "b", "config.pbtxt"), 0o600); err != nil {
		t.Fatal(err)
	}

	ended := make(chan *Repository, 1)
	go func() {
		r, err := Open(dir)
		if err != nil {
			t.Error(err)
		}
		ended <- r
	}()
	select {
	case r := <-ended:
		if len(r.Models) != 1 || len(r.Errors) != 1 || !strings.Contains(r.Errors[0].Error(), "not a regular file") {
			t.Errorf("%d models, %v", len(r.Models), r.Errors)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the repository waits for a writer of the pipe")
	}
}

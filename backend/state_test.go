package backend

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestCommandedIsKept writes the results of commands and reads them as the next process does. Reading also removes
// files that a command brought and that nothing names any more.
func TestCommandedIsKept(t *testing.T) {
	dir := t.TempDir()
	s, err := openCommanded(dir, "../b")
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Dir(s.dir) != dir {
		t.Errorf("state of ../b in %s, want it in %s", s.dir, dir)
	}

	kept, left := filepath.Join(s.dir, overridePrefix+"1"), filepath.Join(s.dir, overridePrefix+"2")
	for _, d := range []string{kept, left} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, o := range map[string]*override{"plain": nil, "config": {config: "c"}, "files": {config: "c", files: kept}} {
		if err := s.noteCommand(name, true, o); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.noteCommand("gone", false, nil); err != nil {
		t.Fatal(err)
	}

	again, err := openCommanded(dir, "../b")
	if err != nil {
		t.Fatal(err)
	}
	with, without := again.atStart([]string{"gone", "other"})
	if !slices.Equal(with, []string{"gone", "other", "plain"}) || !slices.Equal(without, []string{"config", "files", "gone"}) {
		t.Errorf("at start with %v, without %v", with, without)
	}
	all := again.overrides()
	if len(all) != 2 || all["config"].files != "" || all["files"].files != kept || all["files"].config != "c" {
		t.Errorf("overrides %v", all)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("files that no model has are still there")
	}
}

// TestBadStateIsRefused shows that an invalid file, or one that names other directories, is an error that names the
// file.
func TestBadStateIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		`{"m":`:                           "unexpected EOF",
		`{"m":{"loaded":true,"other":1}}`: "unknown field",
		`{"m":{"loaded":true,"config":"c","files":"../secret"}}`: "want a directory",
		`{"m":{"loaded":true,"config":"c","files":"elsewhere"}}`: "want a directory",
	} {
		dir := t.TempDir()
		s, err := openCommanded(dir, "b")
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(s.dir, stateFile)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := openCommanded(dir, "b"); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %q and the file's path", text, err, want)
		}
	}
}

// TestStateAfterACrash: files of writes that did not end go with the next start, and a state that says null is one without models.
func TestStateAfterACrash(t *testing.T) {
	s, err := openCommanded(t.TempDir(), "b")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(s.dir, stateFile)
	unfinished := []string{filepath.Join(s.dir, "."+stateFile+".123"), path + ".123"} // the second by former versions
	for name, text := range map[string]string{path: "null", unfinished[0]: "{", unfinished[1]: "{"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	again, err := openCommanded(filepath.Dir(s.dir), "b")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range unfinished {
		if _, err := os.Stat(name); err == nil {
			t.Errorf("%s, of a write that did not end, is still there", name)
		}
	}
	if err := again.noteCommand("m", true, nil); err != nil {
		t.Error(err)
	}
}

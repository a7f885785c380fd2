//go:build cgo

package learn

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"downbeat.dev/core/repo"
	"downbeat.dev/models"
)

// copyModel returns a repository with only vehicle-s.
func copyModel(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "vehicle-s"), os.DirFS("../../models/vehicle-s")); err != nil {
		t.Fatal(err)
	}
	return dir
}

func openStore(t *testing.T, dir string) *Store {
	r, _ := models.Find("vehicle-s")
	return OpenStore(dir, r.Net())
}

// TestVersionsSurviveARestart shows that a store that opens later reads what was saved, and that the repository
// serves it.
func TestVersionsSurviveARestart(t *testing.T) {
	dir := copyModel(t)
	s := openStore(t, dir)
	version, weights, err := s.Newest()
	if err != nil || version != 1 {
		t.Fatal(version, err)
	}
	for v := 2; v <= 8; v++ {
		weights[0] = float32(v)
		if err := s.Save(Version{Number: v, Weights: weights}); err != nil {
			t.Fatal(err)
		}
	}

	version, again, err := openStore(t, dir).Newest()
	if err != nil || version != 8 || again[0] != 8 || again[1] != weights[1] {
		t.Errorf("version %d, %v", version, err)
	}
	r, err := repo.Open(dir)
	if err != nil || len(r.Errors) > 0 {
		t.Fatal(r.Errors, err)
	}
	if m, err := r.Find("vehicle-s", ""); err != nil || m.Version != "8" {
		t.Errorf("the repository serves %+v, %v", m, err)
	}

	// The last of the learned versions stay, and all of the others.
	if all, err := s.list(); err != nil || len(all) != 1+storedMost || all[0] != 1 || all[1] != 5 {
		t.Errorf("%v, %v", all, err)
	}
	if err := s.Save(Version{Number: 8, Weights: weights}); err == nil || !strings.Contains(err.Error(), "want a later one") {
		t.Errorf("a number that is taken: %v", err)
	}
	if err := s.Remove(1); err == nil || !strings.Contains(err.Error(), "no learner wrote it") {
		t.Errorf("a version that no learner wrote was removed: %v", err)
	}
	if err := s.Remove(8); err != nil {
		t.Error(err)
	}
	if version, _, err = s.Newest(); err != nil || version != 7 {
		t.Errorf("version %d, %v", version, err)
	}
}

// TestAFullDiskLeavesTheOldVersion: the writer fails after the first or the second file, half written.
func TestAFullDiskLeavesTheOldVersion(t *testing.T) {
	for failing := 1; failing <= 2; failing++ {
		dir := copyModel(t)
		s := openStore(t, dir)
		_, weights, err := s.Newest()
		if err != nil {
			t.Fatal(err)
		}
		written := 0
		s.write = func(path string, content []byte) error {
			if written++; written < failing {
				return repo.WriteFile(path, content)
			}
			return errors.Join(os.WriteFile(path, content[:len(content)/2], 0o644), syscall.ENOSPC)
		}
		if err := s.Save(Version{Number: 2, Weights: weights}); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("file %d fails: %v", failing, err)
		}
		if version, _, err := openStore(t, dir).Newest(); err != nil || version != 1 {
			t.Errorf("file %d fails: version %d, %v", failing, version, err)
		}
		entries, err := os.ReadDir(filepath.Join(dir, "vehicle-s"))
		if err != nil || len(entries) != 3 {
			t.Errorf("file %d fails: %v stay, %v", failing, entries, err)
		}
		s.write = repo.WriteFile
		if err := s.Save(Version{Number: 2, Weights: weights}); err != nil {
			t.Errorf("with room again: %v", err)
		}
	}
}

// TestAVersionThatDoesNotLoadIsTakenOut: it must not serve after a restart either.
func TestAVersionThatDoesNotLoadIsTakenOut(t *testing.T) {
	dir := copyModel(t)
	s := openStore(t, dir)
	_, weights, err := s.Newest()
	if err != nil {
		t.Fatal(err)
	}
	lost, asked := errors.New("a GPU is lost"), ""
	publish := s.Publisher(func(_ context.Context, name, version string, _ []byte) error {
		asked = strings.TrimSpace(asked + " " + name + "/" + version)
		if v, _, err := s.Newest(); v == 2 || err != nil {
			return errors.Join(lost, err)
		}
		return nil
	})
	if err := publish(Version{Number: 2, Weights: weights}); !errors.Is(err, lost) || asked != "vehicle-s/2 vehicle-s/" {
		t.Errorf("%v, asked for %s", err, asked)
	}
	if v, _, err := s.Newest(); v != 1 || err != nil {
		t.Errorf("version %d, %v", v, err)
	}
	if err := publish(Version{Number: 3, Weights: weights}); err != nil {
		t.Error(err)
	}
	if v, _, err := s.Newest(); v != 3 || err != nil {
		t.Errorf("version %d, %v", v, err)
	}
}

// TestAWayBackHasTimeOfItsOwn: where an exit does not load in time, it and its model serve the version before, although the
// time for the publication is over. The exit's new version may have been loaded: what failed may be to unload the old one.
func TestAWayBackHasTimeOfItsOwn(t *testing.T) {
	street := openStreet(t)
	net, weights := exitNet(street)
	s := OpenStore(exitRepository(t, net, weights), net)
	s.patience = 10 * time.Millisecond

	serves := map[string]int{"vehicle-s": 1, "early": 1}
	publish := s.Publisher(func(ctx context.Context, name, _ string, _ []byte) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		version, _, err := s.Newest()
		serves[name] = version
		if name == "early" && version == 2 {
			<-ctx.Done()
			return ctx.Err()
		}
		return err
	})
	if err := publish(Version{Number: 2, Weights: weights}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("an exit that does not load: %v", err)
	}
	if serves["vehicle-s"] != 1 || serves["early"] != 1 {
		t.Errorf("%v serve, and the files of version 2 are gone: want version 1", serves)
	}
}

// TestACrashLeavesNoHalfVersion kills the learner's process in the midst of writing a version, and of removing one: what
// stays is no version, and the next learner clears it away.
func TestACrashLeavesNoHalfVersion(t *testing.T) {
	errKilled := errors.New("killed")
	for _, at := range []string{"writing", "removing"} {
		dir := copyModel(t)
		s := openStore(t, dir)
		_, weights, err := s.Newest()
		if err != nil {
			t.Fatal(err)
		}
		killed := func() (died bool) {
			defer func() { died = recover() == errKilled }()
			if at == "writing" {
				s.write = func(string, []byte) error { panic(errKilled) }
			} else {
				s.erase = func(path string) error {
					if os.Remove(filepath.Join(path, "model.onnx")) == nil {
						panic(errKilled)
					}
					return nil
				}
			}
			if err := s.Save(Version{Number: 2, Weights: weights}); err != nil {
				t.Error(err)
			}
			_ = s.Remove(2)
			return false
		}()
		if !killed {
			t.Fatalf("%s: the process was not killed", at)
		}

		again := openStore(t, dir)
		if version, _, err := again.Newest(); err != nil || version != 1 {
			t.Errorf("%s: version %d, %v", at, version, err)
		}
		if err := again.Save(Version{Number: 2, Weights: weights}); err != nil {
			t.Errorf("%s: the same number again: %v", at, err)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "vehicle-s", ".learned-*")); len(left) != 0 {
			t.Errorf("%s: %v stay", at, left)
		}
	}
}

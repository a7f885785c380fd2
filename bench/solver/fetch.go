package solver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const (
	version      = "1.15.3"
	moduleSHA256 = "528be4365bea1d4188988646b244263f50320df55782e14d6af5bce7cd45c840"
)

// readModule returns highs.wasm after checking its digest, and the directory in which it lies. HIGHS_WASM may name
// the file; otherwise it is below the repository's .cache.
func readModule(ctx context.Context) (wasm []byte, dir string, err error) {
	path := os.Getenv("HIGHS_WASM")
	if path == "" {
		root, err := repositoryRoot()
		if err != nil {
			return nil, "", err
		}
		path = filepath.Join(root, ".cache", "highs", version, "highs.wasm")
		if err := fetchMissing(ctx, root, path); err != nil {
			return nil, "", err
		}
	}

	wasm, err = os.ReadFile(path)
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", ErrUnavailable, err)
	}

	sum := sha256.Sum256(wasm)
	if got := hex.EncodeToString(sum[:]); got != moduleSHA256 {
		return nil, "", fmt.Errorf("%s: the digest is %s, want %s (HiGHS %s of the npm package highs)", path, got, moduleSHA256, version)
	}
	return wasm, filepath.Dir(path), nil
}

// repositoryRoot searches the tree's go.mod from the working directory upwards.
func repositoryRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}

	for {
		if text, err := os.ReadFile(filepath.Join(dir, "go.mod")); err == nil && strings.HasPrefix(string(text), "module downbeat.dev\n") {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("%w: set HIGHS_WASM to highs.wasm of highs@%s, or run inside the repository", ErrUnavailable, version)
		}
		dir = parent
	}
}

func fetchMissing(ctx context.Context, root, path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}

	out, err := exec.CommandContext(ctx, filepath.Join(root, "deploy", "highs", "fetch.sh")).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: deploy/highs/fetch.sh: %w: %s", ErrUnavailable, err, strings.TrimSpace(string(out)))
	}
	return nil
}

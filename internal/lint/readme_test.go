package lint

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestReadmeSaysWhatWasMeasured compares the numbers in README.md's table with the pages of their measurements: a new
// measurement changes both.
func TestReadmeSaysWhatWasMeasured(t *testing.T) {
	read := func(path string) string {
		text, err := os.ReadFile("../../" + path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	readme := read("README.md")
	for what, from := range map[string]struct {
		page, cell string // the place of the number: a pattern with one group
		row        string // beginning of README.md's row
	}{
		"goodput":      {"bench/results/goodput/README.md", `(?m)^\| table4-resnet50 \| ([\d,]+) \|(?: [\d,]+ \|){10}`, "| goodput, ResNet50"},
		"dispatch":     {"bench/results/dispatch/README.md", `(?m)^\| 100 \| ([\d.]+) \|`, "| requests dispatched"},
		"overhead":     {"bench/results/overhead/2-cores.txt", `three processes, shm +(\d+)\.`, "| one request through"},
		"overhead's":   {"bench/results/overhead/2-cores.txt", `three processes, shm +\S+ µs +\S+ µs +(\d+)\.`, "| one request through"},
		"serve":        {"bench/results/overhead/serve-2-cores.txt", `(?m)^ +2 +REST +([\d.]+) ms`, "| a REST call of an idle"},
		"gateway":      {"bench/results/gateway/2-cores.txt", `gRPC +(\d\d)\d\d\d `, "| gRPC gateway"},
		"the data way": {"bench/results/transfer/README.md", `loopback \| tcp \| incast \| 153600 × 8 \| ([\d.]+) /`, "| 8 × 150 KB"},
	} {
		cell := regexp.MustCompile(from.cell).FindStringSubmatch(read(from.page))
		if cell == nil {
			t.Errorf("%s: %s has nothing like %s", what, from.page, from.cell)
			continue
		}
		_, row, found := strings.Cut(readme, from.row)
		row, _, _ = strings.Cut(row, "\n")
		if !found || !strings.Contains(row, cell[1]) {
			t.Errorf("%s: %s says %s, README.md says %s%s", what, from.page, cell[1], from.row, row)
		}
	}
}

package family

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"downbeat.dev/core/profile"
)

// Column selects the latency column of the table.
type Column string

// The columns. The paper names the mean, the public simulator reads the median. In the public table some means are
// minutes, because a few trials failed.
const (
	ColumnMedian Column = "50th_pct"
	ColumnMean   Column = "avg_latency(ms)"
)

// The files of a directory of profiles, and their limits.
const (
	profilesFile = "aggregate_profiled.csv"
	variantsDir  = "model_variants"
	rowsMax      = 1 << 16
	sizeLimit    = 1 << 10
	familiesMax  = 1 << 8
	variantsMax  = 1 << 6
)

// kindNames are the common names of the table's accelerators. The public table calls the newer of its two GPUs
// "ampere" where the paper has V100s.
var kindNames = map[string]string{
	"onnxruntime_cpu": "cpu", "onnxruntime_gpu_pascal": "1080ti", "onnxruntime_gpu_ampere": "v100",
}

// ReadZoo reads a directory in the form of Proteus's public data: aggregate_profiled.csv with a row per (model,
// accelerator, batch size), and model_variants/FAMILY with lines `model,accuracy in percent`. Kinds are sorted by
// name; errors name the file, the line and the field.
func ReadZoo(dir fs.FS, column Column) (*Zoo, error) {
	file, err := dir.Open(profilesFile)
	if err != nil {
		return nil, err
	}

	defer file.Close()

	table, err := readTable(file, column)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", profilesFile, err)
	}

	zoo := &Zoo{Name: "published", Kinds: table.kindNames()}

	entries, err := fs.ReadDir(dir, variantsDir)
	if err != nil {
		return nil, err
	}
	if len(entries) == 0 || len(entries) > familiesMax {
		return nil, fmt.Errorf("%s: %d families, want 1 to %d", variantsDir, len(entries), familiesMax)
	}

	for _, e := range entries {
		path := variantsDir + "/" + e.Name()
		f, err := dir.Open(path)
		if err != nil {
			return nil, err
		}
		variants, err := readVariants(f, table, zoo.Kinds)
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		zoo.Families = append(zoo.Families, Family{Name: e.Name(), Variants: variants})
	}
	return zoo, nil
}

// latencies are a table's rows: the latency of each size, by model and kind.
type latencies map[string]map[string]map[int]time.Duration

// kindNames returns the names of all kinds, sorted, cpu first.
func (t latencies) kindNames() []string {
	var out []string
	for _, byKind := range t {
		for kind := range byKind {
			if !slices.Contains(out, kind) {
				out = append(out, kind)
			}
		}
	}

	// Put the CPU first: rules about the slowest kind use the first one.
	slices.SortFunc(out, func(a, b string) int {
		if (a == "cpu") != (b == "cpu") {
			return map[bool]int{true: -1, false: 1}[a == "cpu"]
		}
		return strings.Compare(a, b)
	})
	return out
}

// readTable reads the rows of a table of profiles.
func readTable(r io.Reader, column Column) (latencies, error) {
	c := csv.NewReader(r)
	head, err := c.Read()
	if err == io.EOF {
		return nil, errors.New("line 1: nothing there, want a header")
	}
	if err != nil {
		return nil, err
	}

	// Find columns by name: published tables differ in order.
	at := make([]int, 0, 4)
	for _, name := range []string{"Model", "Accel", "batchsize", string(column)} {
		i := slices.Index(head, name)
		if i < 0 {
			return nil, fmt.Errorf("line 1: no field %q in the header", name)
		}
		at = append(at, i)
	}

	out, rows := make(latencies), 0
	for {
		record, err := c.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}

		line, _ := c.FieldPos(0)
		if rows++; rows > rowsMax {
			return nil, fmt.Errorf("line %d: more than %d rows", line, rowsMax)
		}
		if err := out.addRow(record[at[0]], record[at[1]], record[at[2]], record[at[3]], string(column)); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
	}

	if rows == 0 {
		return nil, errors.New("line 2: no row behind the header")
	}
	return out, nil
}

// addRow adds one row.
func (t latencies) addRow(model, accel, size, latency, column string) error {
	if model == "" {
		return errors.New("field Model is empty")
	}
	if accel == "" {
		return errors.New("field Accel is empty")
	}

	b, err := strconv.Atoi(size)
	if err != nil || b < 1 || b > sizeLimit {
		return fmt.Errorf("field batchsize = %q: want 1 to %d", size, sizeLimit)
	}

	ms, err := strconv.ParseFloat(latency, 64)
	if err != nil || !(ms > 0 && ms <= float64(profile.LatencyLimit/time.Millisecond)) {
		return fmt.Errorf("field %s = %q: want more than 0 and at most %d milliseconds", column, latency, profile.LatencyLimit/time.Millisecond)
	}

	kind := accel
	if name, ok := kindNames[accel]; ok {
		kind = name
	}
	if t[model] == nil {
		t[model] = make(map[string]map[int]time.Duration)
	}
	if t[model][kind] == nil {
		t[model][kind] = make(map[int]time.Duration)
	}

	// The public table has one model measured twice. Use the slower of two equal measurements.
	d := max(1, time.Duration(math.Round(ms*1e6)))
	if before, twice := t[model][kind][b]; twice {
		if math.Abs(float64(d-before)) > 0.1*float64(before) {
			return fmt.Errorf("field %s = %q: model %s on %s at batch %d had %v before, want measurements within a tenth", column, latency, model, accel, b, before)
		}
		d = max(d, before)
	}
	t[model][kind][b] = d
	return nil
}

// readVariants reads one family's lines `model,accuracy in percent`.
func readVariants(r io.Reader, table latencies, kinds []string) ([]Variant, error) {
	var out []Variant
	s := bufio.NewScanner(r)
	for line := 1; s.Scan(); line++ {
		name, percent, ok := strings.Cut(strings.TrimSpace(s.Text()), ",")
		if !ok {
			return nil, fmt.Errorf("line %d: %q: want model,accuracy", line, s.Text())
		}

		accuracy, err := strconv.ParseFloat(percent, 64)
		if err != nil || !(accuracy >= 0 && accuracy <= 100) {
			return nil, fmt.Errorf("line %d: field accuracy = %q: want 0 to 100", line, percent)
		}

		// Without a latency the variant could neither be placed nor timed.
		if table[name] == nil {
			return nil, fmt.Errorf("line %d: field model = %q: no latency in %s", line, name, profilesFile)
		}
		if slices.ContainsFunc(out, func(v Variant) bool { return v.Name == name }) {
			return nil, fmt.Errorf("line %d: field model = %q appears twice", line, name)
		}
		if len(out) == variantsMax {
			return nil, fmt.Errorf("line %d: more than %d variants", line, variantsMax)
		}

		// The file has a percentage, a Variant a share.
		v := Variant{Name: name, Accuracy: accuracy / 100}
		for _, kind := range kinds {
			v.Measured = append(v.Measured, table[name][kind])
		}
		out = append(out, v)
	}
	if err := s.Err(); err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, errors.New("line 1: no variant, want one at least")
	}
	return out, nil
}

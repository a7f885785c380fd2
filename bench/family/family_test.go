package family

import (
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

const header = "Model,Accel,Trials,batchsize,50th_pct,90th_pct,avg_latency(ms),Min,Max,Accuracy,Normalized_Accuracy\n"

func row(model, accel, size, median string) string {
	return model + "," + accel + ",9," + size + "," + median + ",9,8,1,99,70,100\n"
}

func zooFiles(table, variants string) fs.FS {
	return fstest.MapFS{profilesFile: {Data: []byte(table)}, variantsDir + "/f": {Data: []byte(variants)}}
}

func traceFiles(text string) fs.FS { return fstest.MapFS{"f.txt": {Data: []byte(text)}} }

func TestReadZoo(t *testing.T) {
	table := header + row("a", "onnxruntime_gpu_pascal", "4", "7") + row("a", "onnxruntime_cpu", "1", "10") +
		row("a", "onnxruntime_cpu", "2", "30") + row("a", "onnxruntime_cpu", "4", "20") + row("b", "onnxruntime_cpu", "1", "5.5")
	zoo, err := ReadZoo(zooFiles(table, "a,100\nb,90.5\n"), ColumnMedian)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(zoo.Kinds, []string{"cpu", "1080ti"}) {
		t.Errorf("kinds %v, want cpu first and names that people use", zoo.Kinds)
	}
	f := zoo.Families[0]
	if len(f.Variants) != 2 || f.Variants[1].Accuracy != 0.905 {
		t.Fatalf("family %+v", f)
	}

	p, err := f.Variants[0].Profile(0, 8)
	if err != nil {
		t.Fatal(err)
	}
	for b, want := range []time.Duration{10, 20, 20, 20} {
		if got := p.Exec(b + 1); got != want*time.Millisecond {
			t.Errorf("ℓ(%d) = %v, want %v ms: padded to the size that takes least", b+1, got, want)
		}
	}
	if p, err := f.Variants[1].Profile(1, 8); p != nil || err != nil {
		t.Errorf("b on the 1080 Ti: %v, %v, want none: nothing was measured", p, err)
	}
}

// TestBadInputIsNamed: what is wrong is refused with the file, the line and the field.
func TestBadInputIsNamed(t *testing.T) {
	good := row("a", "onnxruntime_cpu", "1", "10")
	for _, c := range []struct {
		table, variants string
		want            []string
	}{
		{"", "a,1", []string{profilesFile, "line 1"}},
		{header, "a,1", []string{profilesFile, "line 2", "no row"}},
		{"Model,Accel,batchsize\n", "a,1", []string{"line 1", "50th_pct"}},
		{header + row("a", "onnxruntime_cpu", "1", "NaN"), "a,1", []string{profilesFile, "line 2", "50th_pct", `"NaN"`}},
		{header + good + row("a", "onnxruntime_cpu", "2", "-1"), "a,1", []string{"line 3", "50th_pct", `"-1"`}},
		{header + row("a", "onnxruntime_cpu", "0", "3"), "a,1", []string{"line 2", "batchsize", `"0"`}},
		{header + good + row("a", "onnxruntime_cpu", "1", "12"), "a,1", []string{"line 3", "10ms before"}},
		{header + good, "", []string{variantsDir + "/f", "line 1"}},
		{header + good, "a,1\nc,2", []string{variantsDir + "/f", "line 2", `"c"`}},
		{header + good, "a,NaN", []string{variantsDir + "/f", "line 1", "accuracy", `"NaN"`}},
		{header + good, "a,101", []string{"accuracy", `"101"`}},
		{header + good, "a,9\na,9", []string{"line 2", "twice"}},
		{header + good, "a", []string{"line 1", "model,accuracy"}},
	} {
		_, err := ReadZoo(zooFiles(c.table, c.variants), ColumnMedian)
		requireNamed(t, err, c.want)
	}

	for text, want := range map[string][]string{
		"":                       {"f.txt", "line 1", "no request"},
		"1,1,300\nNaN,1,300":     {"f.txt", "line 2", "arrival_ms", `"NaN"`},
		"-1,1,300":               {"line 1", "arrival_ms", `"-1"`},
		"5,1,300\n4,1,300":       {"line 2", "arrival_ms", "line before"},
		"1,2,300":                {"line 1", "requests", `"2"`},
		"1,1,0":                  {"line 1", "slo_ms", `"0"`},
		"1,1,300\n1,1,200":       {"line 2", "slo_ms"},
		"1,1":                    {"line 1", "2 fields"},
		"1e300,1,300":            {"arrival_ms"},
		"1,1,300\n\n2,1,300":     {"line 2"},
		"1,1,Inf":                {"slo_ms"},
		"1,1,300,4":              {"4 fields"},
		strings.Repeat("1", 1e6): {"f.txt", "line 1"},
	} {
		_, err := ReadTrace(traceFiles(text), "t")
		requireNamed(t, err, want)
	}
	_, err := ReadTrace(fstest.MapFS{}, "t")
	requireNamed(t, err, []string{"FAMILY.txt"})
}

func requireNamed(t *testing.T, err error, want []string) {
	t.Helper()
	for _, part := range want {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v, want one that says %q", err, part)
		}
	}
}

func TestReadTraceMergesFamilies(t *testing.T) {
	dir := fstest.MapFS{"b.txt": {Data: []byte("1,1,300\n7,1,300\n")}, "a.txt": {Data: []byte("2.5,1,200\n7,1,200\n")}, "README": {Data: []byte("x")}}
	trace, err := ReadTrace(dir, "t")
	if err != nil {
		t.Fatal(err)
	}
	var order []int32
	for _, a := range trace.Arrivals {
		order = append(order, a.Model)
	}
	if !slices.Equal(order, []int32{1, 0, 0, 1}) || !slices.Equal(trace.Families, []string{"a", "b"}) || trace.SLO[0] != 200*time.Millisecond {
		t.Errorf("%+v", trace)
	}
}

func TestRepair(t *testing.T) {
	table := header
	for _, v := range []struct{ name, cpu, old, newer string }{
		{"yolov5s", "60", "12", "16"}, {"yolov5m", "105", "14", "20"}, {"resnest14", "70", "32", "30"}, {"resnest269", "556", "32", "90"},
		{"prajjwal1/bert-medium", "1", "1.7", "3"}, {"bert-base-uncased", "50", "9.8", "14.4"},
	} {
		table += row(v.name, "onnxruntime_cpu", "1", v.cpu) + row(v.name, "onnxruntime_gpu_pascal", "1", v.old) + row(v.name, "onnxruntime_gpu_ampere", "1", v.newer)
	}
	variants := "yolov5s,89.5\nyolov5m,73.8\nresnest14,89\nresnest269,100\nprajjwal1/bert-medium,92\nbert-base-uncased,96\n"
	published, err := ReadZoo(zooFiles(table, variants), ColumnMedian)
	if err != nil {
		t.Fatal(err)
	}
	zoo := published.Repair()
	if s, m := zoo.findVariant("yolov5s").Accuracy, zoo.findVariant("yolov5m").Accuracy; s != 0.738 || m != 0.895 {
		t.Errorf("yolov5s %v, yolov5m %v", s, m)
	}
	if got := zoo.findVariant("resnest269").Measured[1][1]; got != 96*time.Millisecond {
		t.Errorf("resnest269 on the 1080 Ti: %v, want three times resnest14's, as on the other GPU", got)
	}
	if got := zoo.findVariant("prajjwal1/bert-medium").Measured[0][1]; got < 14*time.Millisecond || got > 16*time.Millisecond {
		t.Errorf("bert-medium on the CPU: %v, want 0.296 of bert-base's 50 ms", got)
	}
	if published.findVariant("resnest269").Measured[1][1] != 32*time.Millisecond {
		t.Error("the published zoo changed, too")
	}
}

func TestMadeTraces(t *testing.T) {
	for _, c := range []struct {
		shape      string
		mean, peak float64
	}{{"diurnal", 259, 1025}, {"bursty", 604, 1155}, {"figure4", 387, 1474}} {
		shape, err := FindShape(c.shape)
		if err != nil {
			t.Fatal(err)
		}
		trace := Make(shape, 1)
		mean, peak := rates(trace)
		if mean < 0.95*c.mean || mean > 1.05*c.mean || peak < 0.9*c.peak || peak > 1.1*c.peak {
			t.Errorf("%s: mean %.0f, busiest second %.0f, want about %v and %v", c.shape, mean, peak, c.mean, c.peak)
		}
		if again := Make(shape, 1); !slices.Equal(again.Arrivals, trace.Arrivals) {
			t.Errorf("%s: one seed made two traces", c.shape)
		}
	}
	if _, err := FindShape("square"); err == nil || !strings.Contains(err.Error(), "diurnal") {
		t.Errorf("error %v, want one that lists the shapes", err)
	}
}

// rates returns the mean and the busiest second's requests/s.
func rates(t *Trace) (mean, peak float64) {
	perSecond := make([]float64, int(t.Span()/time.Second))
	for _, a := range t.Arrivals {
		perSecond[int(a.At/1e9)]++
	}
	return float64(len(t.Arrivals)) / float64(len(perSecond)), slices.Max(perSecond)
}

func TestMadeZooServes(t *testing.T) {
	zoo := MakeZoo()
	models, err := zoo.Models([]int{0, 1, 2}, RuleArtifact, 2, make([]time.Duration, len(zoo.Families)), 8)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range models {
		if v := m.Variants[len(m.Variants)-1]; v.Accuracy != 1 {
			t.Errorf("%s: the heaviest has accuracy %v, want 1", v.Name, v.Accuracy)
		}
		if d := m.Variants[0].Profiles[0].Exec(1); d > time.Duration(m.SLO) {
			t.Errorf("%s: the lightest takes %v on a CPU, its SLO is %v", m.Name, d, time.Duration(m.SLO))
		}
	}
}

func FuzzReadTrace(f *testing.F) {
	f.Add("1,1,300\n2,1,300\n")
	f.Add("NaN,1,300")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		trace, err := ReadTrace(traceFiles(text), "t")
		if err != nil {
			return
		}
		for i, a := range trace.Arrivals {
			if a.At < 0 || i > 0 && a.At < trace.Arrivals[i-1].At {
				t.Fatalf("arrival %d at %d", i, a.At)
			}
		}
		if len(trace.Arrivals) == 0 || trace.SLO[0] <= 0 {
			t.Fatal("an empty trace was accepted")
		}
	})
}

func FuzzReadZoo(f *testing.F) {
	f.Add(header+row("a", "onnxruntime_cpu", "1", "10"), "a,100\n")
	f.Add(header+row("a", "x", "1024", "1e-9"), "a,-1\n")
	f.Fuzz(func(t *testing.T, table, variants string) {
		zoo, err := ReadZoo(zooFiles(table, variants), ColumnMedian)
		if err != nil {
			return
		}
		for _, v := range zoo.Repair().Families[0].Variants {
			for kind := range zoo.Kinds {
				if _, err := v.Profile(kind, sizeLimit); err != nil {
					t.Fatalf("an accepted zoo has no profile: %v", err)
				}
			}
		}
	})
}

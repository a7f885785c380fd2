package gpu

import (
	"fmt"
	"io"
	"text/tabwriter"

	"downbeat.dev/cuda"
)

// report is the whole result.
type report struct {
	Device     cuda.Properties `json:"device"`
	GPUs       []cuda.GPU      `json:"gpus,omitempty"` // driver and clocks
	Rates      Rates           `json:"rates"`
	Libraries  string          `json:"libraries"` // cuBLASLt and cuDNN as found, "" for neither
	Ceilings   *Ceilings       `json:"ceilings,omitempty"`
	Rows       []Row           `json:"rows,omitempty"`
	Throughput []Throughput    `json:"throughput,omitempty"`
	Checks     []Checked       `json:"checks,omitempty"`
}

func (r report) writeTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "device %s, %d MiB, compute %d.%d, driver %d\n", r.Device.Name, r.Device.MemoryBytes>>20, r.Device.ComputeMajor, r.Device.ComputeMinor, r.Device.DriverVersion)
	if r.Libraries != "" {
		fmt.Fprintf(w, "libraries %s\n", r.Libraries)
	}

	if c := r.Ceilings; c != nil {
		fmt.Fprintf(w, "device copies %.0f GB/s, copies in %.1f GB/s pinned and %.1f pageable, out %.1f\n", c.Device, c.In, c.InPageable, c.Out)
	}

	if len(r.Rows) > 0 {
		fmt.Fprintln(t, "graph\tprecision\tbatch\tours_us\tp99_us\ttorch_us\tratio\tfloor_us\tover floor\tcpu_us\tallocs\t")
	}
	for _, x := range r.Rows {
		torch, ratio := "-", "-"
		if x.TorchUS != nil {
			torch, ratio = fmt.Sprintf("%.1f", *x.TorchUS), fmt.Sprintf("%.2f", *x.Ratio)
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%.1f\t%.1f\t%s\t%s\t%.1f\t%.1f\t%.1f\t%.1f\t\n", x.Graph, x.Precision, x.Batch, x.OursUS, x.P99US, torch, ratio, x.FloorUS, x.Floor, x.CPUUS, x.Allocs)
	}

	for _, x := range r.Throughput {
		fmt.Fprintf(t, "pipeline of %d\tpinned %v\t%.0f images/s\tcopy-in bound %.0f\tcompute bound %.0f\tshare %.2f\tone at a time %.0f\tover pageable %.2f\t\n", x.Batch, x.Pinned, x.PerSecond, x.CopyIn, x.Compute, x.Share, x.Alone, x.Ratio)
	}

	passed := 0
	for _, x := range r.Checks {
		if x.Passed {
			passed++
			continue
		}
		fmt.Fprintf(t, "FAILED\t%s\t%s\tbatch %d\tby layer %v\t%s\t\n", x.Case, x.Precision, x.Batch, x.ByLayer, x.Reason)
	}

	if len(r.Checks) > 0 {
		fmt.Fprintf(t, "%d of %d checks passed\t\n", passed, len(r.Checks))
	}
	return t.Flush()
}

package host

import (
	"fmt"
	"strings"

	"downbeat.dev/backend/ort"
	"downbeat.dev/cuda"
	"downbeat.dev/rdma"
)

// Parts returns the findings about the data plane and the executors.
func Parts() []Finding {
	var all []Finding
	for _, p := range rdma.Providers() {
		f := Finding{What: "data plane: " + p.Name, Found: p.Reason}
		if p.OK && f.Found == "" {
			f.Found = "can be used"
		}
		if !p.OK {
			f.Verdict = Absent
		}
		all = append(all, f)
	}

	return append(append(all, findGPUs()...), runtimeLibrary(ort.Library()))
}

// findGPUs lists the GPUs that the driver's management library reports.
func findGPUs() []Finding {
	list, err := cuda.Inventory()
	if err != nil {
		return []Finding{{What: "GPUs", Verdict: Absent, Found: err.Error()}}
	}
	if len(list) == 0 {
		return []Finding{{What: "GPUs", Verdict: Absent, Found: "the driver sees none"}}
	}

	var all []Finding
	for _, g := range list {
		all = append(all, describeGPU(g))
	}
	return all
}

// describeGPU describes a GPU and everything that keeps Downbeat from using all of it.
func describeGPU(g cuda.GPU) Finding {
	f := Finding{What: fmt.Sprintf("GPU %d", g.Index), Found: fmt.Sprintf("%s, %d of %d MiB free, driver %s", g.Name, g.MemoryFree>>20, g.MemoryBytes>>20, g.Driver)}
	if !cuda.Supported() {
		f.Found += ", but this binary was built without the tag cuda"
	}

	if g.MIG {
		f.Found += fmt.Sprintf(", MIG with %d instances", len(g.Instances))
		for _, x := range g.Instances {
			f.Found += fmt.Sprintf("; %s, %d MiB, %s", x.Name, x.MemoryBytes>>20, x.UUID)
		}
	}

	if g.MPSDaemon {
		f.Found += fmt.Sprintf(", MPS runs (%d processes)", g.MPS)
	}

	// Report every problem, not only the worst.
	worse := func(format string, args ...any) {
		f.Verdict, f.Change = Slower, strings.TrimPrefix(f.Change+"; "+fmt.Sprintf(format, args...), "; ")
	}

	// On a partitioned GPU, CUDA opens one instance per process and never the whole GPU.
	switch {
	case g.MIG && len(g.Instances) == 0:
		worse("MIG is on and nothing is split off: make instances, or nvidia-smi -i %d -mig 0", g.Index)
	case g.MIG:
		worse("CUDA sees the first instance: choose one with CUDA_VISIBLE_DEVICES=MIG-…, one backend each")
	}

	if g.Exclusive {
		worse("one process at a time may use it: a backend has it to itself, but nothing can be measured beside it; nvidia-smi -i %d -c 0 lifts that", g.Index)
	}

	if n := g.Processes + g.MPS; n > 0 {
		worse("%d other processes compute on it: give Downbeat GPUs of its own", n)
	}
	return f
}

// runtimeLibrary opens ONNX Runtime as a backend would. The process keeps it open.
func runtimeLibrary(path string) Finding {
	if _, err := ort.Open(path); err != nil {
		return Finding{What: "ONNX Runtime", Verdict: Absent, Found: err.Error()}
	}
	return Finding{What: "ONNX Runtime", Found: path}
}

package host

import (
	"fmt"

	"downbeat.dev/backend/ort"
	"downbeat.dev/cuda"
	"downbeat.dev/rdma"
)

// Parts returns what this host offers to the data plane and to executors.
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
	return append(append(all, gpus()...), runtimeLibrary(ort.Library()))
}

// gpus lists what the driver's management library sees.
func gpus() []Finding {
	list, err := cuda.Inventory()
	if err != nil {
		return []Finding{{What: "GPUs", Verdict: Absent, Found: err.Error()}}
	}
	if len(list) == 0 {
		return []Finding{{What: "GPUs", Verdict: Absent, Found: "the driver sees none"}}
	}
	var all []Finding
	for _, g := range list {
		f := Finding{What: fmt.Sprintf("GPU %d", g.Index), Found: fmt.Sprintf("%s, %d of %d MiB free, driver %s", g.Name, g.MemoryFree>>20, g.MemoryBytes>>20, g.Driver)}
		if g.Processes > 0 {
			f.Verdict, f.Change = Slower, fmt.Sprintf("%d other processes compute on it: give Downbeat GPUs of its own", g.Processes)
		}
		all = append(all, f)
	}
	return all
}

// runtimeLibrary opens ONNX Runtime as a backend would; the process keeps it.
func runtimeLibrary(path string) Finding {
	if _, err := ort.Open(path); err != nil {
		return Finding{What: "ONNX Runtime", Verdict: Absent, Found: err.Error()}
	}
	return Finding{What: "ONNX Runtime", Found: path}
}

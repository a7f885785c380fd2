package host

import (
	"downbeat.dev/backend/ort"
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
	return append(all, runtimeLibrary(ort.Library()))
}

// runtimeLibrary opens ONNX Runtime as a backend would; the process keeps it.
func runtimeLibrary(path string) Finding {
	if _, err := ort.Open(path); err != nil {
		return Finding{What: "ONNX Runtime", Verdict: Absent, Found: err.Error()}
	}
	return Finding{What: "ONNX Runtime", Found: path}
}

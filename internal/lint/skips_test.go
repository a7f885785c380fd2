package lint

import (
	"go/ast"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// skips lists the files that skip tests: how many times, and the make target that runs the skipped tests. A test that
// never runs proves nothing.
var skips = map[string]struct {
	times int
	takes string // of .ci/run, unless byHand names it
	why   string
}{
	"backend/device/devicetest/contract.go": {1, "test", "executors of one batch at a time have nothing to overlap; those of several do"},
	"backend/held_test.go":                  {1, "test-rdma", "soft-RoCE in the guest"},
	"backend/isolate_test.go":               {1, "test", "make fetches ONNX Runtime"},
	"backend/learn/learner_test.go":         {1, "test", "make fetches ONNX Runtime"},
	"backend/ort/ort_test.go":               {1, "test", "make fetches ONNX Runtime"},
	"backend/serve_test.go":                 {1, "test", "make fetches ONNX Runtime"},
	"backend/train/train_test.go":           {1, "test", "make fetches ONNX Runtime"},
	"backend/train/traintest/contract.go":   {1, "test", "make fetches ONNX Runtime"},
	"bench/accuracy/accuracy_test.go":       {1, "test", "the test fetches the solver"},
	"bench/chaos/lan/lan_test.go":           {4, "test", "root makes network namespaces"},
	"bench/dispatch/realtime_linux_test.go": {2, "test", "root has real-time priorities"},
	"bench/drift/real_test.go":              {3, "test", "make fetches ONNX Runtime, and leaves nothing out for shortness"},
	"bench/goodput/parted_bound_test.go":    {1, "test", "without -short"},
	"bench/gpu/check_test.go":               {3, "test-hostgpu", "every option needs the driver's code; networks need it, or no race detector"},
	"bench/gpu/measure_test.go":             {1, "test", "a host without a GPU"},
	"bench/joint/joint_test.go":             {1, "test", "the test fetches the solver"},
	"bench/plans/assign_test.go":            {1, "test", "the test fetches the solver"},
	"bench/plans/market_test.go":            {1, "test", "the test fetches the solver"},
	"bench/policy/scaling/scaling_test.go":  {1, "test", "the test fetches the solver"},
	"bench/solver/solver_test.go":           {1, "test", "the test fetches the solver"},
	"cmd/downbeat/bytes_test.go":            {1, "test", "make fetches ONNX Runtime"},
	"cmd/downbeat/conformance_test.go":      {1, "test", "make fetches ONNX Runtime"},
	"cmd/downbeat/partition_test.go":        {1, "test", "without -short"},
	"cmd/downbeat/stores_test.go":           {1, "test", "root mounts a service account for a pod"},
	"cmd/downbeat/upgrade_test.go":          {3, "test", "a checkout with its history, without -short"},
	"core/repo/repo_test.go":                {1, "test", "root mounts a small file system"},
	"core/swarm/swarm_test.go":              {1, "sim", "a script is what a failing seed is shrunk to; by hand"},
	"cuda/contract_test.go":                 {2, "test-hostgpu", "the driver's code on the processor; gpu-check has the device"},
	"cuda/cudatest/owner.go":                {1, "test-hostgpu", "the driver's code on the processor; gpu-check has the device"},
	"cuda/inventory_cuda_test.go":           {1, "test-hostgpu", "a C compiler"},
	"examples_test.go":                      {1, "test", "without -short"},
	"frontend/gateway/page_test.go":         {1, "test", ".ci/run installs chromium"},
	"frontend/gateway/region_test.go":       {2, "test", "Linux has /dev/shm and /proc"},
	"frontend/gateway/strangers_test.go":    {1, "test", "without -short"},
	"internal/apiserver/apiserver.go":       {1, "apiserver", "a kube-apiserver is built for six minutes, then make test takes it"},
	"learn_test.go":                         {2, "test", "make fetches ONNX Runtime"},
	"live_learning_test.go":                 {1, "test", "make fetches ONNX Runtime"},
	"models/models_test.go":                 {2, "test", "make fetches ONNX Runtime"},
	"rdma/announce_test.go":                 {2, "test", "the other providers are between processes"},
	"rdma/contract_read_test.go":            {1, "test", "plain code, without TLS and the race detector"},
	"rdma/each_test.go":                     {1, "test", "plain code, without TLS and the race detector"},
	"rdma/giveup_test.go":                   {1, "test", "plain code, without TLS and the race detector"},
	"rdma/kernel/watch_test.go":             {3, "test-rdma", "root in the guest, which must take it"},
	"rdma/killed_test.go":                   {1, "test", "the other providers are between processes"},
	"rdma/nettest/crowd_test.go":            {1, "test-net", "namespaces"},
	"rdma/nettest/hurt_test.go":             {1, "test-net", "namespaces"},
	"rdma/nettest/kernel_test.go":           {4, "test-net", "namespaces, as root"},
	"rdma/nettest/place_test.go":            {4, "test-net", "namespaces, as root"},
	"rdma/nettest/rough_test.go":            {1, "test-net", "namespaces, as root"},
	"rdma/nettest/serve_test.go":            {3, "test-net", "namespaces"},
	"rdma/verbs_fault_test.go":              {1, "test-rdma", "soft-RoCE in the guest"},
	"rdma/verbs_rdma_test.go":               {2, "test-rdma", "soft-RoCE in the guest"},
	"system_test.go":                        {1, "test", "port 8000 is free"},
}

// byHand are the targets that .ci/run leaves out because of their cost.
var byHand = []string{"apiserver"}

// TestEverySkipHasARun: every skip names the run that runs the test.
func TestEverySkipHasARun(t *testing.T) {
	found := map[string]int{}
	for _, s := range sources(t) {
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if f, ok := call.Fun.(*ast.SelectorExpr); ok && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, f.Sel.Name) {
				if x, ok := f.X.(*ast.Ident); ok && slices.Contains([]string{"t", "b", "tb", "f"}, x.Name) {
					found[s.path]++
				}
			}
			return true
		})
	}
	for path, n := range found {
		if skips[path].times != n {
			t.Errorf("%s skips %d times, internal/lint/skips_test.go says %d: name there the run that takes the test", path, n, skips[path].times)
		}
	}

	// The runs exist.
	var targets []byte
	for _, file := range []string{"../../Makefile", "../../cuda/cuda.mk", "../../rdma/rdma.mk"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		targets = append(targets, text...)
	}
	ci, err := os.ReadFile("../../.ci/run")
	if err != nil {
		t.Fatal(err)
	}
	for path, s := range skips {
		if found[path] == 0 {
			t.Errorf("internal/lint/skips_test.go names %s, which skips nothing", path)
		}
		if !regexp.MustCompile(`(?m)^` + s.takes + `:`).Match(targets) {
			t.Errorf("%s: there is no make %s", path, s.takes)
		}
		if !slices.Contains(byHand, s.takes) && !regexp.MustCompile(`(?m)^step make `+s.takes+`\b( |$)`).Match(ci) || strings.TrimSpace(s.why) == "" {
			t.Errorf("%s: .ci/run has no step make %s, or there is no reason", path, s.takes)
		}
	}
}

package check

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// scaled is what this test reads of a set of backends and of what scales it.
type scaled struct {
	Kind     string
	Metadata struct{ Name string }
	Spec     struct {
		Template struct {
			Spec struct {
				Containers []struct {
					Args      []string
					Resources struct{ Limits map[string]any }
				}
			}
		}
		Triggers []struct{ Metadata struct{ Threshold string } }
		Metrics  []struct {
			External struct{ Target struct{ AverageValue string } }
		}
	}
}

// TestScalersCountLanes: a backend's set is scaled by as many GPUs a pod as the backend announces to the scheduler, which
// counts each lane.
func TestScalersCountLanes(t *testing.T) {
	compared := 0
	for name, values := range cases(t) {
		text, err := renderChart(t, values)
		if err != nil {
			t.Fatal(err)
		}

		announced, asked := map[string]int{}, map[string]string{}
		for _, document := range strings.Split(text, "---\n# Source")[1:] {
			var s scaled
			if err := yaml.Unmarshal([]byte("# Source"+document), &s); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			switch {
			case s.Kind == "StatefulSet" && strings.Contains(s.Metadata.Name, "-backend-"):
				announced[s.Metadata.Name] = announcedGPUs(t, s)
			case len(s.Spec.Triggers) > 0:
				asked[s.Metadata.Name] = s.Spec.Triggers[0].Metadata.Threshold
			case len(s.Spec.Metrics) > 0 && s.Spec.Metrics[0].External.Target.AverageValue != "":
				asked[s.Metadata.Name] = s.Spec.Metrics[0].External.Target.AverageValue
			}
		}

		for set, threshold := range asked {
			compared++
			if threshold != strconv.Itoa(announced[set]) {
				t.Errorf("%s: %s is scaled by %s GPUs a pod, and its pods announce %d", name, set, threshold, announced[set])
			}
		}
	}
	if compared < 4 {
		t.Errorf("%d sets compared, want 4 at least", compared)
	}
}

// announcedGPUs returns how many GPUs a pod of a set announces: its GPUs, emulated GPUs or executors, times its lanes.
func announcedGPUs(t *testing.T, s scaled) int {
	t.Helper()
	c := s.Spec.Template.Spec.Containers[0]
	devices, lanes := 1, 1
	for flag, to := range map[string]*int{"-executors": &devices, "-emulate": &devices, "-lanes": &lanes} {
		at := slices.Index(c.Args, flag)
		if at < 0 {
			continue
		}
		n, err := strconv.Atoi(c.Args[at+1])
		if err != nil {
			t.Fatalf("%s: %v", s.Metadata.Name, err)
		}
		*to = n
	}

	if slices.Contains(c.Args, "-gpu") {
		devices = int(c.Resources.Limits["nvidia.com/gpu"].(float64))
	}
	return devices * lanes
}

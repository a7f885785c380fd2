//go:build cgo && !race

package learn

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"downbeat.dev/backend/train"
	"downbeat.dev/core/repo"
	"downbeat.dev/models"
)

// exitNet returns vehicle-s with one early exit, and its weights in the tree with an untrained head.
func exitNet(s *street) (net train.Net, weights []float32) {
	net = s.recipe.Net()
	net.Exits = []train.Exit{{After: 1, Body: []train.Layer{&train.Conv{Out: 8, K: 3, Stride: 2}, &train.Flatten{}, &train.Dense{Out: 6, Linear: true}}}}
	weights, err := net.ExtendWeights(s.weights(), 3)
	if err != nil {
		s.t.Fatal(err)
	}
	return net, weights
}

// TestExitsLearnWithTheirModel: night falls. The published model has its exit's head trained with it, and reports the
// exit's accuracy.
func TestExitsLearnWithTheirModel(t *testing.T) {
	s := openStreet(t)
	net, weights := exitNet(s)
	var published []Version
	l := s.learner(func(o *Options) {
		o.Net, o.Weights = net, weights
		o.Publish = func(v Version) error {
			published = append(published, v)
			return nil
		}
	})
	if gaps := l.ExitGaps(); len(gaps) != 1 || gaps[0] < 0.5 {
		t.Fatalf("gaps of the first version: %v, want one of a head that knows nothing", gaps)
	}
	s.live(l, 0, 1200, dark(), nil)
	if len(published) == 0 {
		t.Fatalf("nothing was published: %+v", l.Counts())
	}

	// The reported accuracy matches other samples, of the night and of all lights, which judged it together.
	last := published[len(published)-1]
	if len(last.ExitGaps) != 1 {
		t.Fatalf("exit gaps %v, want one", last.ExitGaps)
	}
	j, err := newJudge(l.options, 0, last.Weights)
	if err != nil {
		t.Fatal(err)
	}
	defer j.close()
	all, err := j.answerSamples(slices.Concat(s.draw(512, dark()), s.draw(1024, nil)))
	if err != nil {
		t.Fatal(err)
	}
	gap := RightShare(all.right) - RightShare(all.exits[0])
	t.Logf("%d published, said %.3f, shown %.3f, first %.3f; %+v", len(published), last.ExitGaps[0], gap, l.versions[0].ExitGaps, l.Counts())
	if math.Abs(gap-last.ExitGaps[0]) > 0.12 || gap > 0.5 {
		t.Errorf("the exit is said to be worse by %.3f, and is by %.3f", last.ExitGaps[0], gap)
	}
}

// TestExitsOfTheTreeLearn: the exits that the tree's models have are known from the start, and a published version has the
// accuracy of each.
func TestExitsOfTheTreeLearn(t *testing.T) {
	s := openStreet(t)
	for _, name := range []string{"vehicle-s", "vehicle-m"} {
		s.recipe, _ = models.Find(name)
		net := s.recipe.Structure()
		_, weights, err := OpenStore("../../models", net).Newest()
		if err != nil {
			t.Fatal(err)
		}

		var published []Version
		l := s.learner(func(o *Options) {
			o.Net, o.Weights, o.StepTime = net, weights, 20*time.Millisecond
			o.Publish = func(v Version) error {
				published = append(published, v)
				return nil
			}
		})
		first := l.ExitGaps()
		if len(first) != 2 || math.Abs(first[0]) > 0.1 || math.Abs(first[1]) > 0.1 {
			t.Fatalf("%s: gaps of the first version: %v, want those of two heads that are trained", name, first)
		}

		s.live(l, 0, 900, dark(), nil)
		if len(published) == 0 {
			t.Fatalf("%s: nothing was published: %+v", name, l.Counts())
		}
		last := published[len(published)-1]
		t.Logf("%s: %d published, gaps %.3f at first, %.3f then", name, len(published), first, last.ExitGaps)
		if len(last.ExitGaps) != 2 || max(last.ExitGaps[0], last.ExitGaps[1]) > 0.15 {
			t.Errorf("%s: gaps %v, want two of heads that follow their body", name, last.ExitGaps)
		}
	}
}

// exitRepository returns a repository of the net and of its exit as a model.
func exitRepository(t *testing.T, net train.Net, weights []float32) (dir string) {
	dir = copyModel(t)
	m, err := net.Serving(weights)
	if err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile(filepath.Join(dir, "vehicle-s", "config.pbtxt"))
	if err != nil {
		t.Fatal(err)
	}
	config = append([]byte(strings.Replace(string(config), `name: "vehicle-s"`, `name: "early"`, 1)), `
parameters { key: "exit_of" value { string_value: "vehicle-s" } }
parameters { key: "exit_stage" value { string_value: "1" } }
`...)
	err = errors.Join(os.WriteFile(filepath.Join(dir, "vehicle-s", "1", "model.onnx"), m.Marshal(), 0o644),
		os.CopyFS(filepath.Join(dir, "early"), os.DirFS("../../models/vehicle-l-exit1")),
		os.WriteFile(filepath.Join(dir, "early", "config.pbtxt"), config, 0o644))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestExitsArePublishedWithTheirModel: the exit's version follows the model's, with the accuracy at which it was
// judged. If it does not load, the model's version is also withdrawn.
func TestExitsArePublishedWithTheirModel(t *testing.T) {
	s := openStreet(t)
	net, weights := exitNet(s)
	dir := exitRepository(t, net, weights)
	lost := errors.New("a GPU is lost")
	var failing string // the version of the exit that fails
	var asked []string
	publish := OpenStore(dir, net).Publisher(func(_ context.Context, name, _ string, _ []byte) error {
		found, err := repo.OpenModel([]string{dir}, name, repo.Options{})
		if err != nil {
			return err
		}
		asked = append(asked, name+"/"+found[0].Version)
		if name == "early" && found[0].Version == failing {
			return lost
		}
		return nil
	})

	if err := publish(Version{Number: 2, Weights: weights, ExitGaps: []float64{0.2}}); err != nil {
		t.Fatal(err)
	}
	whole, err := repo.OpenModel([]string{dir}, "vehicle-s", repo.Options{})
	if err != nil {
		t.Fatal(err)
	}
	exit, err := repo.OpenModel([]string{dir}, "early", repo.Options{})
	if err != nil || exit[0].Version != "2" || math.Abs(whole[0].Info().Accuracy-0.2-exit[0].Info().Accuracy) > 1e-6 {
		t.Errorf("%v: version %s, accuracy %v: want version 2 and 0.2 less than %v", err, exit[0].Version, exit[0].Info().Accuracy, whole[0].Info().Accuracy)
	}

	failing = "3"
	if err := publish(Version{Number: 3, Weights: weights, ExitGaps: []float64{0.1}}); !errors.Is(err, lost) {
		t.Errorf("%v, want what the exit's load ended with", err)
	}
	if want := []string{"vehicle-s/2", "early/2", "vehicle-s/3", "early/3", "vehicle-s/2", "early/2"}; !slices.Equal(asked, want) {
		t.Errorf("loaded %v, want %v", asked, want)
	}
}

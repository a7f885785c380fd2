package drift

import (
	"math"
	"slices"
	"time"

	"downbeat.dev/backend/learn"
	"downbeat.dev/backend/train"
)

// ekya retrains every model in every window, with a share of the GPUs, and swaps the weights when all of it is done
// (Bhardwaj et al., NSDI 2022; EVIDENCE §4 A9). A window's samples are given at its start, as in AdaInf's evaluation:
// that is more than a live system could have.
//
// Its micro-profiling is the published one: train on a tenth of the samples for a few epochs, really, and extrapolate.
// Its thief schedules by quanta of a tenth of a GPU: since the models cost the same here, trying each share for both finds
// what stealing quanta would.
type ekya struct {
	setting Setting
	streams []*stream
	serving [][]float32
	next    [][]float32   // that are put in force when the window is swapAt old
	swapAt  time.Duration // from the window's start; 0: nothing is to come
	began   time.Duration
	shares  [10]served // by tenths of the GPUs that retraining takes
	last    float64    // finish of the last window
}

const (
	profileShare  = 10 // one in so many samples is profiled on
	profileEpochs = 5
	windowSamples = labelled * int(Period/tick)
	ekyaRate      = 1e-3
)

var ekyaEpochs = [...]int{1, 2, 5, 10} // its configurations

func openEkya(s Setting, streams []*stream) (learning, error) {
	e := &ekya{setting: s, streams: streams}
	for i := range e.shares {
		var err error
		if e.shares[i], err = simulateServing(s, 1-float64(i)/10); err != nil {
			return nil, err
		}
	}
	for _, st := range streams {
		e.serving = append(e.serving, st.start)
	}
	return e, nil
}

// beginPeriod plans a window, and computes what its retraining will give.
func (e *ekya) beginPeriod(period int) error {
	e.began, e.swapAt = Period*time.Duration(period), 0
	all := make([][]learn.Sample, len(e.streams))
	curves := make([][]float64, len(e.streams))
	for m, st := range e.streams {
		var err error
		if all[m], err = st.drawMany(ofPeriods+period*perPeriod, windowSamples, period); err != nil {
			return err
		}
		if curves[m], err = e.profileModel(m, all[m]); err != nil {
			return err
		}
	}

	epochs, tenths := e.steal(curves)
	if tenths == 0 {
		e.last = e.shares[0].finish
		return nil
	}

	// The GPUs are shared until the swap, so that the window's finish is a mean over both parts.
	e.swapAt = e.retrainTime(epochs, tenths)
	share := e.swapAt.Seconds() / Period.Seconds()
	e.last = share*e.shares[tenths].finish + (1-share)*e.shares[0].finish

	e.next = nil
	for m := range e.streams {
		// Samples that judged the configurations are not trained on.
		held := len(all[m]) / 4
		weights, err := e.retrain(m, all[m][held:], epochs, nil)
		if err != nil {
			return err
		}
		e.next = append(e.next, weights)
	}
	return nil
}

// profileModel returns the accuracy on held-out samples now and after each epoch on a tenth of the others.
func (e *ekya) profileModel(m int, all []learn.Sample) (curve []float64, err error) {
	held := all[:len(all)/4]
	judge := func(weights []float32) error {
		a, err := learn.Accuracy(e.streams[m].recipe.Net(), weights, held, e.setting.Library)
		curve = append(curve, a)
		return err
	}

	// The curve begins with the weights that serve: no training is one of the choices.
	if err := judge(e.serving[m]); err != nil {
		return nil, err
	}
	_, err = e.retrain(m, all[len(held):][:len(all)/profileShare], profileEpochs, judge)
	return curve, err
}

// retrain trains a model's serving weights further on samples; after each epoch it calls judge, unless that is nil.
func (e *ekya) retrain(m int, list []learn.Sample, epochs int, judge func([]float32) error) ([]float32, error) {
	net := e.streams[m].recipe.Net()
	t, err := train.New(net, train.Options{Batch: batchMax, Weights: e.serving[m], Library: e.setting.Library})
	if err != nil {
		return nil, err
	}
	defer t.Close()

	for range epochs {
		// The training graph has one batch size: a rest that is smaller is left out.
		for at := 0; at+batchMax <= len(list); at += batchMax {
			if err := trainOn(t, net, list[at:at+batchMax], ekyaRate); err != nil {
				return nil, err
			}
		}
		if judge != nil {
			if err := judge(t.Weights()); err != nil {
				return nil, err
			}
		}
	}
	return slices.Clone(t.Weights()), nil
}

// steal chooses how long to retrain and how many tenths of the GPUs to take for it, by the estimated mean accuracy of the
// window: what is answered in time, and rightly.
func (e *ekya) steal(curves [][]float64) (epochs, tenths int) {
	best := 0.0
	for _, c := range curves {
		best += c[0] * e.shares[0].finish
	}

	// Until the swap the old weights serve with what is left, afterwards the new ones with everything.
	for _, n := range ekyaEpochs {
		for k := 1; k < len(e.shares); k++ {
			took := e.retrainTime(n, k)
			if took >= Period {
				continue
			}
			share, estimate := took.Seconds()/Period.Seconds(), 0.0
			for _, c := range curves {
				estimate += share*c[0]*e.shares[k].finish + (1-share)*extrapolate(c, n)*e.shares[0].finish
			}
			if estimate > best {
				best, epochs, tenths = estimate, n, k
			}
		}
	}
	return epochs, tenths
}

// retrainTime is how long micro-profiling and then retraining of all models take with some tenths of the GPUs.
func (e *ekya) retrainTime(epochs, tenths int) time.Duration {
	// The stated profile gives the time: how long the processor really takes does not matter.
	whole := windowSamples - windowSamples/4
	steps := len(e.streams) * (epochs*(whole/batchMax) + profileEpochs*(windowSamples/profileShare/batchMax))
	gpus := float64(tenths) / 10 * float64(e.setting.GPUs)
	return time.Duration(float64(steps) * float64(trainTime()) / gpus)
}

// extrapolate reads an accuracy after some epochs off a curve; beyond its end it goes on by the logarithm of the epochs.
func extrapolate(curve []float64, epochs int) float64 {
	last := len(curve) - 1
	if epochs <= last {
		return curve[epochs]
	}

	// A curve that falls is taken to stay: training is never predicted to harm.
	slope := max(0, curve[last]-curve[last/2]) / math.Log(float64(last)/float64(last/2))
	return min(1, curve[last]+slope*math.Log(float64(epochs)/float64(last)))
}

func (e *ekya) offerSample(int, learn.Sample) error { return nil }

func (e *ekya) endSecond(now time.Duration) error {
	if e.swapAt > 0 && now-e.began >= e.swapAt {
		e.serving, e.swapAt = e.next, 0
	}
	return nil
}

func (e *ekya) weights(model int) []float32 { return e.serving[model] }
func (e *ekya) alarms(int) int              { return 0 } // it does not ask
func (e *ekya) finishShare() float64        { return e.last }
func (e *ekya) close()                      {}

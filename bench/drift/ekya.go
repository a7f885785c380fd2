package drift

import (
	"math"
	"slices"
	"time"

	"downbeat.dev/backend/learn"
	"downbeat.dev/backend/train"
)

// ekya retrains every model in every window with a share of the GPUs, and replaces the weights when all of the
// retraining is done (Bhardwaj et al., NSDI 2022; EVIDENCE §4 A9). It gets a window's samples at the window's start,
// as in AdaInf's evaluation: more than a live system could have.
//
// Its micro-profiling is the published one: it really trains on a tenth of the samples for a few epochs, and
// extrapolates. Its thief schedules in quanta of a tenth of a GPU: since the models cost the same here, trying each
// share for both gives the result of stealing quanta.
type ekya struct {
	setting Setting
	streams []*stream
	serving [][]float32
	next    [][]float32   // weights that serve swapAt after the window's start
	swapAt  time.Duration // from the window's start; 0: no weights are pending
	began   time.Duration
	shares  [10]served // by tenths of the GPUs used for retraining
	last    float64    // finish rate of the last window
	live    bool       // it has the samples of the window before, as a system that runs has
}

const (
	profileShare  = 10 // micro-profiling uses one sample in this many
	profileEpochs = 5
	windowSamples = labelled * int(Period/tick)
	ekyaRate      = 1e-3
)

var ekyaEpochs = [...]int{1, 2, 5, 10} // number of epochs of its configurations

func openEkya(s Setting, streams []*stream) (learning, error) {
	return newEkya(ekya{setting: s, streams: streams})
}

func openEkyaLive(s Setting, streams []*stream) (learning, error) {
	return newEkya(ekya{setting: s, streams: streams, live: true})
}

func newEkya(e ekya) (learning, error) {
	for i := range e.shares {
		var err error
		if e.shares[i], err = simulateServing(e.setting, 1-float64(i)/10); err != nil {
			return nil, err
		}
	}

	for _, st := range e.streams {
		e.serving = append(e.serving, st.start)
	}
	return &e, nil
}

// beginPeriod plans a window, and computes the result of its retraining.
func (e *ekya) beginPeriod(period int) error {
	e.began, e.swapAt = Period*time.Duration(period), 0
	e.last = e.shares[0].finish

	// The first window of a running system has no samples.
	from := period
	if e.live {
		from--
	}
	if from < 0 {
		return nil
	}

	all := make([][]learn.Sample, len(e.streams))
	curves := make([][]float64, len(e.streams))
	for m, st := range e.streams {
		var err error
		if all[m], err = st.drawMany(ofPeriods+from*perPeriod, windowSamples, from); err != nil {
			return err
		}
		if curves[m], err = e.profileModel(m, all[m]); err != nil {
			return err
		}
	}

	epochs, tenths := e.steal(curves)
	if tenths == 0 {
		return nil
	}

	// The GPUs are shared until the swap, so the window's finish rate is a mean over both parts.
	e.swapAt = e.retrainTime(epochs, tenths)
	share := e.swapAt.Seconds() / Period.Seconds()
	e.last = share*e.shares[tenths].finish + (1-share)*e.shares[0].finish

	e.next = nil
	for m := range e.streams {
		// Do not train on the samples that judged the configurations.
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
		a, err := learn.Accuracy(e.streams[m].net, weights, held, e.setting.Library)
		curve = append(curve, a)
		return err
	}

	// Begin the curve with the serving weights: no training is one of the choices.
	if err := judge(e.serving[m]); err != nil {
		return nil, err
	}
	_, err = e.retrain(m, all[len(held):][:len(all)/profileShare], profileEpochs, judge)
	return curve, err
}

// retrain continues training of a model's serving weights on samples. It calls judge, unless nil, after each epoch.
func (e *ekya) retrain(m int, list []learn.Sample, epochs int, judge func([]float32) error) ([]float32, error) {
	net := e.streams[m].net
	t, err := train.New(net, train.Options{Batch: batchMax, Weights: e.serving[m], Library: e.setting.Library})
	if err != nil {
		return nil, err
	}
	defer t.Close()

	for range epochs {
		// The training graph has one batch size: leave a smaller remainder out.
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

// steal chooses the number of epochs and of tenths of the GPUs for retraining with the highest estimated mean
// accuracy of the window, counting late answers as wrong.
func (e *ekya) steal(curves [][]float64) (epochs, tenths int) {
	best := 0.0
	for _, c := range curves {
		best += c[0] * e.shares[0].finish
	}

	// Until the swap the old weights serve with the remaining GPUs, afterwards the new ones with all of them.
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

// retrainTime returns the time of micro-profiling and retraining of all models with some tenths of the GPUs.
func (e *ekya) retrainTime(epochs, tenths int) time.Duration {
	// Use the stated profile: the real time on the processor does not matter.
	whole := windowSamples - windowSamples/4
	steps := len(e.streams) * (epochs*(whole/batchMax) + profileEpochs*(windowSamples/profileShare/batchMax))
	gpus := float64(tenths) / 10 * float64(e.setting.GPUs)
	return time.Duration(float64(steps) * float64(trainTime()) / gpus)
}

// extrapolate returns a curve's accuracy after some epochs; beyond its end the curve grows with the logarithm of the
// epochs.
func extrapolate(curve []float64, epochs int) float64 {
	last := len(curve) - 1
	if epochs <= last {
		return curve[epochs]
	}

	// A falling curve stays constant: training is never predicted to harm.
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
func (e *ekya) alarms(int) int              { return 0 } // it does not detect drift
func (e *ekya) finishShare() float64        { return e.last }
func (e *ekya) close()                      {}

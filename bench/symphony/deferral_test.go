package symphony

import (
	"testing"
	"time"

	"downbeat.dev/bench/goodput"
)

// TestBurstsOfModelsThatBatchLittle: in cells of table 3 in which waiting for the rest of a burst loses, ours keeps every
// model's SLO at a load at which Symphony's, which waits, does not.
func TestBurstsOfModelsThatBatchLittle(t *testing.T) {
	rates := map[string]float64{
		"BERT-64-1-20ms-gamma0.1": 7600, "Xception-16-2.5-20ms-gamma0.1": 5550, "Xception-24-1-40ms-gamma0.1": 4050,
		"VGG16-8-2.5-30ms-gamma0.1": 3950, "Xception-8-1.5-30ms-gamma0.3": 1850, "BERT-16-1-20ms-gamma0.5": 1900,
	}
	eachWorst(t, rates, func(cell string, ours, windowed, _ float64) {
		if ours > 0.01 || windowed <= 0.01 {
			t.Errorf("%s: %.4f of the worst model's requests are bad and %.4f of symphony-windowed's, want at most 0.01 and more", cell, ours, windowed)
		}
	})
}

// TestMildBurstsOfModelsThatBatchFairly shows that VGG16 waits where bursts are mild and GPUs are many: ours keeps every
// model's SLO at a load at which eager dispatch does not.
func TestMildBurstsOfModelsThatBatchFairly(t *testing.T) {
	rates := map[string]float64{"VGG16-24-3.5-30ms-gamma0.5": 21700, "VGG16-32-3.5-25ms-gamma0.5": 26800}
	eachWorst(t, rates, func(cell string, ours, _, eager float64) {
		if ours > 0.01 || eager <= 0.01 {
			t.Errorf("%s: %.4f of the worst model's requests are bad and %.4f of eager dispatch's, want at most 0.01 and more", cell, ours, eager)
		}
	})
}

// eachWorst runs cells of table 3 at a rate each and hands on the share of bad requests of the worst model.
func eachWorst(t *testing.T, rates map[string]float64, check func(cell string, ours, windowed, eager float64)) {
	policies, err := goodput.Policies("downbeat,symphony-windowed,eager,clockwork-bare")
	if err != nil {
		t.Fatal(err)
	}

	o := goodput.DefaultOptions()
	o.Seeds, o.SeedBase, o.Span = 5, 80000, 8*time.Second
	for _, s := range table3() {
		rate, ok := rates[s.Name]
		if !ok {
			continue
		}
		w, err := goodput.Prepare(s, o, rate)
		if err != nil {
			t.Fatal(err)
		}

		var worst []float64
		for _, p := range policies {
			bad, _ := w.Run(p, rate).BadShare()
			worst = append(worst, bad)
		}
		t.Logf("%s at %v r/s: of the worst model %.2f %% bad, symphony-windowed %.2f %%, eager %.2f %%, clockwork-bare %.2f %%",
			s.Name, rate, 100*worst[0], 100*worst[1], 100*worst[2], 100*worst[3])
		check(s.Name, worst[0], worst[1], worst[2])
	}
}

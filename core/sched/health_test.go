package sched

import "testing"

// judgeAll notes n equal batches and returns the last verdict.
func judgeAll(h *Health, now Time, peers Peers, n int, failed, slow bool) (v Verdict) {
	for range n {
		h.Note(failed, slow)
		v = h.Judge(now, peers)
	}
	return v
}

// TestSickGPUIsHeldWhileOthersDoBetter: a GPU is held after the given number of consecutive batches, and only while
// others are better.
func TestSickGPUIsHeldWhileOthersDoBetter(t *testing.T) {
	for _, c := range []struct {
		name         string
		peers        Peers
		n            int
		failed, slow bool
		want         Verdict
	}{
		{"fails, not often enough", Peers{GPUs: 2, Working: 1, Sound: 1}, failedMost - 1, true, false, Unchanged},
		{"fails, another works", Peers{GPUs: 2, Working: 1}, failedMost, true, false, Sickened},
		{"fails, all fail", Peers{GPUs: 2}, failedMost, true, false, Unchanged},
		{"fails, another works elsewhere", Peers{GPUs: 1, Elsewhere: true}, failedMost, true, false, Sickened},
		{"slow, not often enough", Peers{GPUs: 2, Working: 2, Sound: 1}, slowMost - 1, false, true, Unchanged},
		{"slow, half are not", Peers{GPUs: 2, Working: 2, Sound: 1}, slowMost, false, true, Sickened},
		{"slow, most are", Peers{GPUs: 3, Working: 3, Sound: 1}, slowMost, false, true, Unchanged},
		{"sound", Peers{GPUs: 2, Working: 2, Sound: 2}, 100, false, false, Unchanged},
	} {
		h := HealthyGPU()
		if got := judgeAll(&h, 0, c.peers, c.n, c.failed, c.slow); got != c.want {
			t.Errorf("%s: verdict %d, want %d", c.name, got, c.want)
		}
	}
}

// TestHoldsGrowUntilTheGPUIsSound: each hold is twice as long as the one before, up to ten seconds; on trial one bad
// batch is enough, and a sound one ends the series.
func TestHoldsGrowUntilTheGPUIsSound(t *testing.T) {
	h, peers, now := HealthyGPU(), Peers{GPUs: 2, Working: 1, Sound: 1}, Time(0)
	if judgeAll(&h, now, peers, failedMost, true, false) != Sickened {
		t.Fatal("it is not held")
	}
	for want := Duration(100e6); want <= 20e9; want *= 2 {
		until := h.Hold(now)
		if got := until.Sub(now); got != min(want, 10e9) {
			t.Fatalf("hold of %d ms, want %d", got/1e6, min(want, 10e9)/1e6)
		}
		if !h.OnTrial() || judgeAll(&h, until-1, peers, 9, true, false) != Unchanged {
			t.Fatal("what was sent before the hold ends is judged")
		}
		if judgeAll(&h, until, peers, 1, true, false) != Sickened {
			t.Fatal("one failed batch on trial is not enough")
		}
		now = until
	}

	if judgeAll(&h, now, peers, 1, false, false) != Recovered || h.OnTrial() {
		t.Error("a sound batch does not end the trial")
	}
	if judgeAll(&h, now, peers, 1, true, false) != Unchanged {
		t.Error("after it is sound one failed batch is held against it")
	}
}

// TestATrialEndsWhereOthersAreNoBetter: the hold came from a comparison, so a trial that finds no better GPU than
// this one ends it.
func TestATrialEndsWhereOthersAreNoBetter(t *testing.T) {
	h, one := HealthyGPU(), Peers{GPUs: 2, Working: 2, Sound: 1}
	if judgeAll(&h, 0, one, slowMost, false, true) != Sickened {
		t.Fatal("it is not held")
	}
	until := h.Hold(0)

	none := Peers{GPUs: 2, Working: 2}
	if judgeAll(&h, until-1, none, 1, false, true) != Unchanged {
		t.Error("what was sent before the hold ends is judged")
	}
	if judgeAll(&h, until, none, 1, false, true) != Recovered || h.OnTrial() {
		t.Error("both are slow, and one of them stays on trial")
	}
	if judgeAll(&h, until, one, slowMost-2, false, true) != Unchanged {
		t.Error("slow batches of before its trial count again")
	}
}

// TestJitterIsNotSlow: the limit is half as long again and 2 ms.
func TestJitterIsNotSlow(t *testing.T) {
	if IsSlow(17e6, 10e6) || !IsSlow(17e6+1, 10e6) || IsSlow(2e6, 0) {
		t.Error("a batch is slow beyond 1.5 of its plan and 2 ms")
	}
}

// TestATrialIsOneRequest: a GPU on trial gets one request of a queue, and the others stay for the next GPU.
func TestATrialIsOneRequest(t *testing.T) {
	for _, trial := range []bool{false, true} {
		p := queueOf(t, 6)
		p.Outputs().Reset()
		p.Grant(0, Grant{Model: 1, Load: 1, Trial: trial})

		want := 6
		if trial {
			want = 1
		}
		out := p.Outputs()
		if len(out.Batches) != 1 || len(out.Batches[0].Requests) != want || p.Queued(1) != 6-want || len(out.Drops) > 0 {
			t.Errorf("trial %v: batches %v, %d queued, %d dropped; want a batch of %d", trial, out.Batches, p.Queued(1), len(out.Drops), want)
		}
	}
}

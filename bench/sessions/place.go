package sessions

// Place is Rim's placement of a stream that stays: a quality, and a worker for each module. No workers: it is
// refused.
type Place struct {
	Quality int
	Workers []int
}

// PlaceByRim lets all streams of a workload ask one after another, and returns their places after the last: streams
// that were demoted for later ones have their last quality. temporal is a factor on a request's GPU time.
func PlaceByRim(w Workload, temporal float64) []Place {
	p := newRim(&w, rule{qualities: "all", choose: "best-fit", cross: true, temporal: temporal})
	for i := range w.Streams {
		p.admitStream(i, 0)
	}
	out := make([]Place, len(w.Streams))
	for _, x := range p.placed {
		out[x.stream] = Place{x.quality, x.worker}
	}
	return out
}

package plan

// DriftBegan returns the index of the first of recent, in the order in which they came, that most likely is of the time
// since a drift: those before are like old, and the others like each other. Of all such divisions it is the one with the
// least squares.
func DriftBegan(old, recent Features) (began int) {
	origin := old.mean()
	sum := make([]float64, recent.Dim)

	// What a division explains of all squares about the old mean is the square of the sum over the samples since, by
	// their number.
	var most float64
	for n := 1; n <= recent.count(); n++ {
		i := recent.count() - n
		var explained float64
		for k, v := range recent.Values[i*recent.Dim : (i+1)*recent.Dim] {
			sum[k] += float64(v) - origin[k]
			explained += sum[k] * sum[k] / float64(n)
		}
		if explained >= most {
			began, most = i, explained
		}
	}
	return began
}

// count returns the number of samples.
func (f Features) count() int { return len(f.Values) / max(1, f.Dim) }

// mean returns the mean of each feature.
func (f Features) mean() []float64 {
	mean := make([]float64, f.Dim)
	for i, v := range f.Values {
		mean[i%f.Dim] += float64(v)
	}
	for k := range mean {
		mean[k] /= float64(max(1, f.count()))
	}
	return mean
}

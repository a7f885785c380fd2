package drift

import "time"

// scrooge serves with all GPUs and retrains every model in the cloud, in every window; the weights are back when the
// transfers and the training there have taken their published time (Hu et al., SoCC 2021, as AdaInf Table 1 has it).
type scrooge struct {
	ekya // for how a model is retrained and swapped
}

const (
	cloudTime   = 34100 * time.Millisecond
	cloudEpochs = 5
)

func openScrooge(s Setting, streams []*stream) (learning, error) {
	c := &scrooge{ekya{setting: s, streams: streams}}
	served, err := simulateServing(s, 1)
	c.last = served.finish
	for _, st := range streams {
		c.serving = append(c.serving, st.start)
	}
	return c, err
}

// beginPeriod sends a window's samples to the cloud: all at its start, as Ekya is given them.
func (c *scrooge) beginPeriod(period int) error {
	c.began, c.swapAt, c.next = Period*time.Duration(period), cloudTime, nil
	for m, st := range c.streams {
		window, err := st.drawMany(ofPeriods+period*perPeriod, windowSamples, period)
		if err != nil {
			return err
		}
		weights, err := c.retrain(m, window, cloudEpochs, nil)
		if err != nil {
			return err
		}
		c.next = append(c.next, weights)
	}
	return nil
}

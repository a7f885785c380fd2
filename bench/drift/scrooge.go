package drift

import "time"

// scrooge serves with all GPUs and retrains every model in the cloud in every window. The weights return after the
// published time of the transfers and the training there (Hu et al., SoCC 2021, according to AdaInf Table 1).
type scrooge struct {
	ekya // for retraining and swapping a model
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

// beginPeriod sends a window's samples to the cloud, all at its start, as for Ekya.
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

package swarm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// clusterModel is a model with its profile, before the backends' differences.
type clusterModel struct {
	name  string
	table []time.Duration
	slo   Duration
	cost  float64 // GPU time per request in a batch that takes half of the SLO, ns

	static uint64 // bytes

	family   string // empty: none
	accuracy float64
	homes    []bool // by sub-cluster; nil: as in modelsOf
}

// drawModels draws the models.
func (c *Cluster) drawModels() {
	// The skew of the models' popularities differs between seeds, from even to strong.
	c.skew = 1 + 2*c.rng.Float64()

	for i := range c.o.Models {
		if c.o.loadsModels() {
			c.models = append(c.models, movableModel(i, i/c.o.Clusters))
		} else {
			c.models = append(c.models, c.drawModel(i))
		}
	}

	if c.o.Variants > 1 {
		c.drawFamilies(rand.New(rand.NewPCG(c.o.Seed, 6)))
	}
}

func (c *Cluster) drawModel(i int) clusterModel {
	r := c.rng

	// A product of two draws makes most models small and a few large.
	alpha, beta := 0.05e6+5e6*r.Float64()*r.Float64(), 0.2e6+20e6*r.Float64()*r.Float64()
	n := []int{1, 2, 8, 16, 32, 64}[r.IntN(6)]
	m := clusterModel{name: fmt.Sprintf("m%d", i), table: make([]time.Duration, n)}
	for b := range m.table {
		m.table[b] = time.Duration(alpha*float64(b+1) + beta)
	}

	slack := 2 + 10*r.Float64()
	if c.o.Tight {
		slack = 1.05 + r.Float64()
	}

	// The SLO must allow for the slowest backend (Unlike) and for the network.
	worst := float64(m.table[0])*(1+c.o.Unlike) + 2*float64(c.o.Delay+c.o.Vary) + float64(c.o.Ctrl+c.o.Data)
	m.slo = Duration(worst * slack)

	// Compute the cost of a request at a batch that takes half of the SLO: a request waits for one batch and runs in
	// the next.
	b := max(1, n-n/8)
	for b > 1 && Duration(m.table[b-1]) > m.slo/2 {
		b--
	}

	m.cost = float64(m.table[b-1]) / float64(b)
	return m
}

// loadRate returns the load in requests/s: a share of the capacity of all GPUs at good batch sizes.
func (c *Cluster) loadRate() float64 {
	var cost float64
	for i := range c.models {
		cost += c.modelShare(i) * c.models[i].cost
	}
	return c.o.Load * float64(c.o.Backends*c.o.GPUs) / cost * 1e9
}

// modelShare returns a model's share of the load: pickModel picks model n·u^skew.
func (c *Cluster) modelShare(i int) float64 {
	n := float64(len(c.models))
	return math.Pow((float64(i)+1)/n, 1/c.skew) - math.Pow(float64(i)/n, 1/c.skew)
}

func (c *Cluster) pickModel() int {
	n := len(c.models)
	return min(n-1, int(float64(n)*math.Pow(c.load.Float64(), c.skew)))
}

// modelsOf returns the models of a sub-cluster; some models are in two.
func (c *Cluster) modelsOf(cluster int) []int {
	var out []int
	for i := range c.models {
		if c.o.loadsModels() { // loaded models are tracked separately
			out = append(out, i)
			continue
		}

		if c.models[i].homes != nil {
			if c.models[i].homes[cluster] {
				out = append(out, i)
			}
			continue
		}

		// Put some models into a second sub-cluster, to exercise the choice between two.
		if i%c.o.Clusters == cluster || i%7 == 3 && (i+1)%c.o.Clusters == cluster {
			out = append(out, i)
		}
	}
	return out
}

package gpu

import (
	"strings"
	"testing"

	"downbeat.dev/backend/layered"
	"downbeat.dev/cuda/layers"
)

// What exporters write as dozens of operators becomes few launches: seven for a layer of an encoder, one for a
// convolution with all that follows it.
func TestGraphsBecomeFewLaunches(t *testing.T) {
	for _, c := range []struct {
		k    Case
		most int
		must []string
	}{
		{Networks()[2], 2*7 + 9, []string{"downbeat.Linears", "downbeat.Attention", "MatMul+Add+Gelu", "MatMul+Add+Add", "MatMul+Add+Tanh"}},
		{Networks()[0], 53 + 3, []string{"Conv+BatchNormalization+Relu", "Conv+BatchNormalization+Add+Relu"}},
	} {
		g, err := layered.Graph(c.k.Model)
		if err != nil {
			t.Fatal(err)
		}
		for _, precision := range []layers.Precision{layers.FP32, layers.BF16} {
			p, err := layers.Compile(g, 2, precision)
			if err != nil {
				t.Fatal(err)
			}
			launches, ops := 0, ""
			for i := range p.Layers {
				launches += len(p.Layers[i].Steps)
				ops += " " + p.Layers[i].Op
			}
			edges := 0
			if precision != layers.FP32 {
				edges = 2 // a cast at either end
			}
			if launches > c.most+edges {
				t.Errorf("%s in %v: %d launches, at most %d:%s", c.k.Name, precision, launches, c.most+edges, ops)
			}
			for _, op := range c.must {
				if !strings.Contains(ops+" ", " "+op+" ") {
					t.Errorf("%s in %v: no %s:%s", c.k.Name, precision, op, ops)
				}
			}
		}
	}
}

package load

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"

	"downbeat.dev/frontend"
	"downbeat.dev/models"
)

// Client is a Target that sends requests through the frontend library, with inputs prepared in advance: rendered
// street scenes for the models of models/, random bytes for others.
type Client struct {
	// Do sends one request; NewClient sets it to the library's own. It may be replaced before the first Infer.
	Do     func(context.Context, frontend.Request) (frontend.Result, error)
	client *frontend.Client
	models []*prepared
}

// prepared is one model with the inputs that its requests use in turn.
type prepared struct {
	model  *frontend.Model
	recipe models.Recipe
	known  bool // recipe is set
	inputs [][]byte
	class  []int // class of each input; -1: unknown, or not a classifier
	right  atomic.Int64
	judged atomic.Int64
}

// inputsEach bounds the memory of inputs; it is large enough to exceed caches.
const inputsEach = 64

// NewClient prepares inputs for the named models, which the scheduler must have announced.
func NewClient(c *frontend.Client, names []string, seed uint64) (*Client, error) {
	t := &Client{client: c, Do: c.Do}
	painter := models.NewPainter()
	for _, name := range names {
		m := c.Model(name, "")
		if m == nil {
			return nil, fmt.Errorf("model %q: the scheduler does not serve it", name)
		}

		p := &prepared{model: m}
		p.recipe, p.known = models.Find(name)
		if err := p.fillInputs(painter, seed); err != nil {
			return nil, fmt.Errorf("model %q: %w", name, err)
		}
		t.models = append(t.models, p)
	}
	return t, nil
}

// fillInputs draws or generates the inputs.
func (p *prepared) fillInputs(painter *models.Painter, seed uint64) error {
	if p.model.InputBytes < 0 {
		return errors.New("its inputs have no fixed size; load cannot make them up")
	}

	// A model of this tree gets rendered scenes, so that its answers can be judged; any other model gets random
	// bytes.
	if p.known {
		h, w := p.recipe.Size()
		p.known = p.model.InputBytes == h*w*3 && len(p.model.Inputs) == 1
	}

	random := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
	for i := range inputsEach {
		in, class := make([]byte, p.model.InputBytes), -1
		if !p.known {
			random.Read(in) // never fails
		} else {
			truth, err := p.recipe.Draw(painter, seed, uint64(i), nil, in)
			if err != nil {
				return err
			}
			if p.recipe.Family != "detector" {
				class = truth.Class
			}
		}
		p.inputs, p.class = append(p.inputs, in), append(p.class, class)
	}
	return nil
}

// Infer sends one request and compares a classifier's answer with the picture's class.
func (t *Client) Infer(ctx context.Context, model, seq int) error {
	p := t.models[model]
	i := seq % len(p.inputs)

	b, err := t.client.Buffer(len(p.inputs[i]))
	if err != nil {
		return err
	}
	defer b.Free()
	copy(b.Bytes(), p.inputs[i])

	r, err := t.Do(ctx, frontend.Request{Model: p.model.Name, Input: b})
	if err != nil {
		return err
	}

	// Only pictures of this tree have a known class; accuracy is over those alone.
	if p.class[i] >= 0 {
		p.judged.Add(1)
		if class, _ := models.Best(decodeFloats(r.Data)); class == p.class[i] {
			p.right.Add(1)
		}
	}

	r.Release()
	return nil
}

// Right returns the number of right classifications, and of all judged ones.
func (t *Client) Right() (right, judged int64) {
	for _, p := range t.models {
		right += p.right.Load()
		judged += p.judged.Load()
	}
	return right, judged
}

// decodeFloats reads little-endian FP32.
func decodeFloats(b []byte) []float32 {
	out := make([]float32, len(b)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out
}

// Classify returns the outcome of a request of the frontend library: the kind and the reason.
func Classify(err error) string {
	var o *frontend.OutcomeError
	if !errors.As(err, &o) {
		return "error: " + err.Error()
	}
	for _, kind := range []error{frontend.ErrDropped, frontend.ErrRejected, frontend.ErrUnavailable, frontend.ErrCanceled, frontend.ErrFailed} {
		if errors.Is(err, kind) {
			return kind.Error() + " (" + o.Reason.String() + ")"
		}
	}
	return o.Reason.String()
}

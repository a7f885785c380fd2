package gateway

import (
	"context"
	"sync"

	"downbeat.dev/frontend"
)

// Applications are served beside the client's models, as if they were models; app.Set is one. A model hides an
// application of its name.
type Applications interface {
	Model(name, version string) *frontend.Model // nil: there is none
	Models() []*frontend.Model
	Do(ctx context.Context, r frontend.Request) (frontend.Result, error)
}

// platformApplication is what tells applications from models.
const platformApplication = "ensemble"

// findModel is the model or the application of a name; nil if there is neither.
func (g *Gateway) findModel(name, version string) *frontend.Model {
	if m := g.client.Model(name, version); m != nil || g.o.Applications == nil {
		return m
	}
	return g.o.Applications.Model(name, version)
}

// listModels are the client's models, then the applications.
func (g *Gateway) listModels() []*frontend.Model {
	all := g.client.Models()
	if g.o.Applications != nil {
		all = append(all, g.o.Applications.Models()...)
	}
	return all
}

// runFrames answers the rows of a call for an application, each as a frame.
func (g *Gateway) runFrames(ctx context.Context, calls []frontend.Call) {
	var wait sync.WaitGroup

	// A frame waits for several models in turn, so rows run beside each other.
	for i := range calls {
		wait.Go(func() { calls[i].Result, calls[i].Err = g.o.Applications.Do(ctx, calls[i].Request) })
	}
	wait.Wait()
}

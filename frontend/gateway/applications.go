package gateway

import (
	"context"
	"sync"

	"downbeat.dev/frontend"
)

// Applications is the set of applications that the gateway serves like the client's models; app.Set implements it. A
// model hides an application of the same name.
type Applications interface {
	Model(name, version string) *frontend.Model // nil: no such application
	Models() []*frontend.Model
	Do(ctx context.Context, r frontend.Request) (frontend.Result, error)
}

// platformApplication is the platform that distinguishes applications from models.
const platformApplication = "ensemble"

// findModel returns the model or the application of a name; nil if there is neither.
func (g *Gateway) findModel(name, version string) *frontend.Model {
	if m := g.client.Model(name, version); m != nil || g.o.Applications == nil {
		return m
	}
	return g.o.Applications.Model(name, version)
}

// listModels returns the client's models, then the applications.
func (g *Gateway) listModels() []*frontend.Model {
	all := g.client.Models()
	if g.o.Applications != nil {
		all = append(all, g.o.Applications.Models()...)
	}
	return all
}

// runFrames runs the rows of a call for an application, each row as a frame.
func (g *Gateway) runFrames(ctx context.Context, calls []frontend.Call) {
	var wait sync.WaitGroup

	// A frame waits for several models in turn, so rows run concurrently.
	for i := range calls {
		wait.Go(func() { calls[i].Result, calls[i].Err = g.o.Applications.Do(ctx, calls[i].Request) })
	}
	wait.Wait()
}

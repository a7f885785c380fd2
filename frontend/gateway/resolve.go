package gateway

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"

	"downbeat.dev/core/model"
	"downbeat.dev/frontend"
)

// resolveModel finds a model by the client's name and version.
func (g *Gateway) resolveModel(ctx context.Context, name, version string) (*frontend.Model, *fault) {
	// Check this before any lookup: only clients that may use a model learn whether it exists.
	c := clientOf(ctx)
	if f := clientFault(c, c.CheckModel(name)); f != nil {
		return nil, f
	}

	if m := g.findModel(name, version); m != nil {
		// An operator unloaded the model, so it does not exist (404). A model that failed to load, or a family whose floor
		// no variant reaches, exists but is unavailable (503).
		if m.Reason == model.Unloaded {
			return nil, notFound("Request for unknown model: %s has no available versions: it is unloaded", singleQuoted(name))
		}
		if m.Reason != "" {
			label := "unknown_model"
			if strings.HasPrefix(m.Reason, model.BelowFloor) {
				label = model.FloorTooHigh.String()
			}
			return nil, refusalFault(http.StatusServiceUnavailable, codes.Unavailable, label,
				"Request for unknown model: "+singleQuoted(name)+" has no available versions: "+m.Reason)
		}
		return m, nil
	}
	if version != "" && g.findModel(name, "") != nil {
		return nil, notFound("Request for unknown model: %s version %s is not found; served: %v", singleQuoted(name), singleQuoted(version), g.listVersions(name))
	}

	// Without a scheduler the set of models is unknown.
	if !g.client.Connected() {
		return nil, refusalFault(http.StatusServiceUnavailable, codes.Unavailable, noScheduler, "the scheduler is not connected")
	}
	return nil, notFound("Request for unknown model: %s is not found; GET /v2/repository/index or RepositoryIndex lists the models", singleQuoted(name))
}

// singleQuoted quotes a client's text as Triton does in errors that its clients compare, with unprintable characters
// escaped.
func singleQuoted(text string) string {
	q := strconv.Quote(text)
	return "'" + q[1:len(q)-1] + "'"
}

// noScheduler labels calls whose model could not be looked up.
const noScheduler = "no_scheduler"

// listVersions returns a model's versions that a backend serves, or all known ones if no backend serves any. A family
// has none; its variants have.
func (g *Gateway) listVersions(name string) []string {
	all, ready := []string{}, []string(nil)
	for _, m := range g.listModels() {
		if m.Name != name || m.Version == "" {
			continue
		}
		all = append(all, m.Version)
		if m.Ready {
			ready = append(ready, m.Version)
		}
	}

	if len(ready) > 0 {
		return ready
	}
	return all
}

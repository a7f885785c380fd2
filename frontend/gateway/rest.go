package gateway

import (
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"

	"downbeat.dev/core/guard"
	"downbeat.dev/core/model"
	"downbeat.dev/frontend"
)

// extensions are the protocol's published extensions that this gateway implements.
var extensions = []string{"binary_tensor_data", "classification", "generate", "logging", "model_configuration", "model_repository",
	"parameters", "schedule_policy", "statistics", "trace"}

// listExtensions returns the extensions that this deployment allows.
func (g *Gateway) listExtensions() []string {
	if g.regions.off {
		return extensions
	}
	memory := []string{"system_shared_memory"}
	if g.regions.countDevices() > 0 {
		memory = append(memory, "cuda_shared_memory")
	}
	return append(memory, extensions...)
}

// registerRoutes registers the REST API and the process's own routes. New adds the page's routes.
func (g *Gateway) registerRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /v2", g.restServer)
	mux.HandleFunc("GET /v2/{$}", g.restServer)
	g.process.Routes(mux)
	mux.HandleFunc("GET /v2/models/stats", g.restStats)
	mux.HandleFunc("POST /v2/repository/index", g.restIndex)
	mux.HandleFunc("GET /v2/repository/index", g.restIndex)

	for _, path := range []string{"/v2/models/{model}", "/v2/models/{model}/versions/{version}"} {
		mux.HandleFunc("GET "+path, g.restModel)
		mux.HandleFunc("GET "+path+"/ready", g.restModelReady)
		mux.HandleFunc("GET "+path+"/config", g.restConfig)
		mux.HandleFunc("GET "+path+"/stats", g.restStats)
		mux.HandleFunc("POST "+path+"/infer", g.callsOf(&inferForm))
		g.generateRoutes(mux, path)
	}

	g.memoryRoutes(mux)
	g.controlRoutes(mux)
	g.canaryRoutes(mux)
	g.traceRoutes(mux)
	mux.HandleFunc("GET /v2/logging", g.restLogging)
	mux.HandleFunc("POST /v2/logging", g.restLogging)

	// An unknown path gets an error in the API's form, not the mux's plain text.
	for _, path := range []string{"/v2", "/v2/"} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { refusePath(mux, w, r) })
	}
}

// refusePath answers a request without a route: the API lacks the path, or only the method.
func refusePath(mux *http.ServeMux, w http.ResponseWriter, r *http.Request) {
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		// Ask the mux whether the path has a route with another method.
		other := *r
		other.Method = method
		if _, route := mux.Handler(&other); strings.HasPrefix(route, method) {
			w.Header().Set("Allow", method)
			writeFault(w, refusalFault(http.StatusMethodNotAllowed, codes.Unimplemented, "unknown_path", "method "+r.Method+" of "+r.URL.Path+": must be "+method))
			return
		}
	}
	writeFault(w, refusalFault(http.StatusNotFound, codes.Unimplemented, "unknown_path", "path "+r.URL.Path+": not part of the API"))
}

func (g *Gateway) restServer(w http.ResponseWriter, _ *http.Request) {
	guard.WriteJSON(w, http.StatusOK, map[string]any{"name": g.o.Name, "version": g.o.Version, "extensions": g.listExtensions()})
}

type restTensor struct {
	Name     string         `json:"name"`
	Datatype model.Datatype `json:"datatype"`
	Shape    []int64        `json:"shape"`
	// Parameters says what the input takes instead, under the key picture.
	Parameters map[string]string `json:"parameters,omitempty"`
}

func restTensors(m *frontend.Model, outputs bool) []restTensor {
	ts := m.Inputs
	if outputs {
		ts = m.Outputs
	}
	all := make([]restTensor, len(ts))
	for i, t := range ts {
		all[i] = restTensor{t.Name, t.Datatype, modelShape(m, &t), nil}
		if t.Picture != nil {
			all[i].Parameters = map[string]string{pictureKey: pictureTypes}
		}
	}
	return all
}

func (g *Gateway) restModel(w http.ResponseWriter, r *http.Request) {
	m, f := g.resolveModel(r.Context(), r.PathValue("model"), r.PathValue("version"))
	if f != nil {
		writeFault(w, f)
		return
	}
	guard.WriteJSON(w, http.StatusOK, map[string]any{"name": m.Name, "versions": g.listVersions(m.Name), "platform": m.Platform,
		"inputs": restTensors(m, false), "outputs": restTensors(m, true)})
}

func (g *Gateway) restModelReady(w http.ResponseWriter, r *http.Request) {
	m, f := g.resolveModel(r.Context(), r.PathValue("model"), r.PathValue("version"))
	if f != nil {
		writeFault(w, f)
		return
	}

	ready := m.Ready && g.client.Connected()
	code := http.StatusOK
	if !ready {
		code = http.StatusServiceUnavailable
	}
	guard.WriteJSON(w, code, map[string]any{"name": m.Name, "ready": ready})
}

func writeFault(w http.ResponseWriter, f *fault) {
	// These conditions pass: a client that retries after a second may be served.
	if f.http == http.StatusTooManyRequests || f.http == http.StatusServiceUnavailable || f.retry {
		w.Header().Set("Retry-After", "1")
	}
	guard.WriteJSON(w, f.http, map[string]string{"error": f.text})
}

// Package page is the web page of a running system: goodput and bad rate per model over time, batch sizes, and which
// GPU ran which batch when. It is embedded, needs no build step and no other host, and shows the Data that it is
// given. It measures nothing itself.
package page

import (
	"embed"
	"encoding/json"
	"io/fs"
	"net/http"
)

// Data is what the page shows; it is fetched about once a second.
type Data struct {
	Version   string  `json:"version"`
	Connected bool    `json:"connected"`
	Ready     bool    `json:"ready"`     // every model has a backend
	Scheduler bool    `json:"scheduler"` // batches and GPUs are known
	Elsewhere bool    `json:"elsewhere"` // Good, Bad and Reasons include requests from other frontends
	Live      int64   `json:"live"`      // requests under way in this gateway
	Seconds   int     `json:"seconds"`   // length of the series
	Models    []Model `json:"models"`
	GPUs      []GPU   `json:"gpus"`
	Batches   []Batch `json:"batches"`
	Steps     []Batch `json:"steps"`  // of spare work, such as training; without a model and a size
	Window    float64 `json:"window"` // ms before now that Batches and Steps cover
}

// Model is one model's last minutes, one entry per second, oldest first.
type Model struct {
	Name    string            `json:"name"`
	Version string            `json:"version"`
	ID      uint32            `json:"id"`
	Ready   bool              `json:"ready"`
	SLO     float64           `json:"slo"`     // ms
	Good    []uint32          `json:"good"`    // requests answered in time
	Bad     []uint32          `json:"bad"`     // the others
	P99     []float64         `json:"p99"`     // ms, of those with an output that this gateway returned
	P50     float64           `json:"p50"`     // ms, over the last ten seconds
	Reasons map[string]uint32 `json:"reasons"` // of the bad requests, over the whole series
	Sizes   []uint64          `json:"sizes"`   // Sizes[b]: batches of b requests since the scheduler started
	Queued  int               `json:"queued"`
}

// GPU is one GPU of the cluster.
type GPU struct {
	ID   uint32  `json:"id"`
	Name string  `json:"name"`
	Busy float64 `json:"busy"` // part of the last second
}

// Batch is one batch that ran: ms before now.
type Batch struct {
	GPU   uint32  `json:"g"`
	Model uint32  `json:"m"`
	Size  uint32  `json:"n"`
	Start float64 `json:"s"`
	End   float64 `json:"e"`
}

//go:embed static
var static embed.FS

// Routes registers the page at / and its data at /v2/downbeat/page.
func Routes(mux *http.ServeMux, data func() Data) {
	files, err := fs.Sub(static, "static")
	if err != nil {
		panic(err) // the folder is embedded above
	}
	serve := http.FileServerFS(files)
	show := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", "default-src 'self'; img-src 'self' data:")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-cache")
		serve.ServeHTTP(w, r)
	}

	for _, path := range []string{"GET /{$}", "GET /page.js", "GET /panels.js", "GET /page.css"} {
		mux.HandleFunc(path, show)
	}

	mux.HandleFunc("GET /v2/downbeat/page", func(w http.ResponseWriter, _ *http.Request) {
		text, err := json.Marshal(data())
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_, _ = w.Write(text)
	})
}

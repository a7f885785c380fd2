package gateway

import (
	"net/http"

	"google.golang.org/grpc/codes"
)

// explainPath is where the scheduler's explanation of prices, accuracies and drops is asked for.
const explainPath = "/v2/downbeat/explain"

// explain answers with what a scheduler says of itself; nil: it runs elsewhere.
func explain(s Scheduler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if s == nil {
			writeFault(w, refusalFault(http.StatusNotFound, codes.NotFound, "no_scheduler",
				"path "+explainPath+": the scheduler runs in another process: ask at the address that its configuration names under metrics"))
			return
		}

		x, err := s.Explain()
		if err != nil {
			writeFault(w, refusalFault(http.StatusServiceUnavailable, codes.Unavailable, "closing", err.Error()))
			return
		}
		writeJSON(w, http.StatusOK, x)
	})
}

package observe

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"downbeat.dev/core/engine"
	"downbeat.dev/core/guard"
)

// PlanPath serves plans: GET returns the models' places and the state of the latest plan, POST applies a plan. A
// proposal, on a path below it, applies nothing.
const (
	PlanPath     = "/v2/downbeat/plan"
	proposalPath = PlanPath + "/proposal"
	rollbackPath = PlanPath + "/rollback"
)

// planBytesMax bounds the size of a plan: 65,536 models on several GPUs each.
const planBytesMax = 64 << 20

// moveShareDefault is the default limit of a proposal's moves, as a share of the models' load time.
const moveShareDefault = 0.05

// Planner is a scheduler that applies plans.
type Planner interface {
	PlanStatus() (engine.PlanStatus, error)
	ProposePlan(engine.PlanOptions) (engine.ProposedPlan, error)
	ApplyPlan(engine.Plan) (engine.PlanStatus, error)
	RollBackPlan() (engine.PlanStatus, error)
}

// planRoutes registers the operator's routes for plans. They work if the scheduler is in this process.
func (p *Process) planRoutes(mux *http.ServeMux) {
	// The planner may be opened after the routes are registered, so each call asks for it.
	handle := func(route string, answer func(Planner, http.ResponseWriter, *http.Request) (any, error)) {
		mux.HandleFunc(route, func(w http.ResponseWriter, r *http.Request) {
			planner := p.planner()
			if planner == nil {
				guard.Refuse(w, http.StatusNotFound,
					"path "+PlanPath+": the scheduler runs in another process: ask at the address of its flag -metrics, 127.0.0.1:8002 by default")
				return
			}

			x, err := answer(planner, w, r)
			if err != nil {
				guard.Refuse(w, planStatus(err), err.Error())
				return
			}
			guard.WriteJSON(w, http.StatusOK, x)
		})
	}

	handle("GET "+PlanPath, func(p Planner, _ http.ResponseWriter, _ *http.Request) (any, error) { return p.PlanStatus() })
	handle("GET "+proposalPath, func(p Planner, _ http.ResponseWriter, r *http.Request) (any, error) {
		o, err := readPlanOptions(r)
		if err != nil {
			return nil, err
		}
		return p.ProposePlan(o)
	})
	handle("POST "+rollbackPath, func(p Planner, _ http.ResponseWriter, _ *http.Request) (any, error) { return p.RollBackPlan() })
	handle("POST "+PlanPath, func(p Planner, w http.ResponseWriter, r *http.Request) (any, error) {
		d := json.NewDecoder(http.MaxBytesReader(w, r.Body, planBytesMax))
		var plan engine.Plan
		if err := d.Decode(&plan); err != nil {
			return nil, fmt.Errorf("plan: %w: want {\"number\":…,\"models\":[{\"model\":…,\"version\":…,\"gpus\":[…]}]}", err)
		}

		// Two plans in one body are a mistake.
		if _, err := d.Token(); !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("plan: byte %d: want the end", d.InputOffset())
		}
		return p.ApplyPlan(plan)
	})
}

// readPlanOptions reads parts and moves from a proposal's query.
func readPlanOptions(r *http.Request) (o engine.PlanOptions, err error) {
	o.MoveShare = moveShareDefault
	q := r.URL.Query()
	if text := q.Get("parts"); text != "" {
		if o.Parts, err = strconv.Atoi(text); err != nil {
			return o, fmt.Errorf("parts=%s: want a number of sub-clusters, 0 for as few as memory allows", text)
		}
	}
	if text := q.Get("moves"); text != "" {
		if o.MoveShare, err = strconv.ParseFloat(text, 64); err != nil {
			return o, fmt.Errorf("moves=%s: want a share from 0 to 1", text)
		}
	}
	return o, nil
}

// planner returns this process's scheduler if it applies plans, else nil.
func (p *Process) planner() Planner {
	if s := p.scheduler.Load(); s != nil {
		planner, _ := s.engine.(Planner)
		return planner
	}
	return nil
}

// planStatus returns the HTTP status of a refused plan: conflict if the cluster's state does not allow it, else bad
// request.
func planStatus(err error) int {
	switch {
	case errors.Is(err, engine.ErrPlan):
		return http.StatusConflict
	case errors.Is(err, engine.ErrClosed):
		return http.StatusServiceUnavailable
	}
	return http.StatusBadRequest
}

// IsPlan reports whether a path is one of the operator's routes for plans.
func IsPlan(path string) bool { return path == PlanPath || strings.HasPrefix(path, PlanPath+"/") }

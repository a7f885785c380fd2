package solver

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

// limitMax is the longest search, a day.
const limitMax = 24 * time.Hour

// HiGHS's C functions under their export names in version 1.15.3.
const (
	initialize      = "v"
	malloc          = "uc"
	highsCreate     = "F"
	highsPassMip    = "V"
	highsRun        = "N"
	highsSetBool    = "ia"
	highsSetDouble  = "ka"
	highsSetStart   = "Va"
	highsGetInt     = "Aa"
	highsGetDouble  = "Ba"
	highsGetResult  = "Ea"
	highsGetStatus  = "Ga"
	highsGetOptimum = "Ka"
)

// compiledModule is the compiled module, once per process.
type compiledModule struct {
	runtime wazero.Runtime
	module  wazero.CompiledModule
}

var (
	compiling sync.Mutex
	compiled  *compiledModule
)

// openModule compiles the module if necessary. It does not keep a failure: the next call tries again.
func openModule(ctx context.Context) (*compiledModule, error) {
	compiling.Lock()
	defer compiling.Unlock()
	if compiled != nil {
		return compiled, nil
	}

	wasm, dir, err := readModule(ctx)
	if err != nil {
		return nil, err
	}

	// The cache beside the module saves later processes the compilation.
	config := wazero.NewRuntimeConfig()
	if cache, err := wazero.NewCompilationCacheWithDir(filepath.Join(dir, "compiled")); err == nil {
		config = config.WithCompilationCache(cache) // without a cache every process compiles
	}

	// The runtime outlives the caller's context.
	background := context.WithoutCancel(ctx)
	c := &compiledModule{runtime: wazero.NewRuntimeWithConfig(background, config)}
	if err = instantiateHost(background, c.runtime); err == nil {
		c.module, err = c.runtime.CompileModule(background, wasm)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("solver: HiGHS does not compile: %w", err), c.runtime.Close(background))
	}
	compiled = c
	return c, nil
}

// Solve minimises a problem. It returns ErrUnavailable without a solver, the context's error when the context ends,
// and an error for a malformed problem. A problem without a solution is no error but a Status.
func Solve(ctx context.Context, p Problem) (s Solution, err error) {
	if err := p.checkShape(); err != nil {
		return s, err
	}

	c, err := openModule(ctx)
	if err != nil {
		return s, err
	}
	// wazero needs an empty name to run several instances of one module.
	instance, err := c.runtime.InstantiateModule(ctx, c.module, wazero.NewModuleConfig().WithName("").WithStartFunctions(initialize))
	if err != nil {
		return s, fmt.Errorf("solver: %w", err)
	}
	defer func() { err = errors.Join(err, instance.Close(context.WithoutCancel(ctx))) }()

	begun := time.Now()
	m := &machine{ctx: ctx, module: instance, memory: instance.Memory()}
	s = m.solveProblem(&p)
	s.Elapsed = time.Since(begun)
	if m.err != nil {
		return Solution{}, fmt.Errorf("solver: %w", m.err)
	}
	return s, ctx.Err()
}

// machine is one instance of the module. It keeps the first error, and later calls do nothing.
type machine struct {
	ctx    context.Context
	module api.Module
	memory api.Memory
	err    error
}

func (m *machine) callFunction(function string, arguments ...uint64) uint64 {
	if m.err != nil {
		return 0
	}

	result, err := m.module.ExportedFunction(function).Call(m.ctx, arguments...)
	if err != nil {
		m.err = err
	}

	if len(result) == 0 {
		return 0
	}
	return result[0]
}

// mustCall is call for functions that return HiGHS's status: 0 good, 1 a warning, -1 an error.
func (m *machine) mustCall(what, function string, arguments ...uint64) {
	if status := int32(m.callFunction(function, arguments...)); status < 0 && m.err == nil {
		m.err = fmt.Errorf("HiGHS refuses %s", what)
	}
}

// solveProblem passes the problem, runs, and reads the result. The instance is discarded afterwards, so nothing is
// freed.
func (m *machine) solveProblem(p *Problem) Solution {
	highs := m.callFunction(highsCreate)
	m.configureRun(highs, p)
	m.passProblem(highs, p)
	if p.Hint != nil {
		m.mustCall("the hint", highsSetStart, highs, m.passFloats(p.Hint), 0, 0, 0)
	}

	m.mustCall("to run", highsRun, highs)
	return m.readSolution(highs, p)
}

func (m *machine) configureRun(highs uint64, p *Problem) {
	limit := p.Limit
	if limit == 0 {
		limit = time.Minute
	}

	m.mustCall("silence", highsSetBool, highs, m.passText("output_flag"), 0)
	m.mustCall("a time limit", highsSetDouble, highs, m.passText("time_limit"), api.EncodeF64(min(limit, limitMax).Seconds()))
	if p.Gap > 0 {
		m.mustCall("a gap", highsSetDouble, highs, m.passText("mip_rel_gap"), api.EncodeF64(p.Gap))
	}
}

func (m *machine) passProblem(highs uint64, p *Problem) {
	const byColumns, minimise = 1, 1
	integrality := uint64(0)
	if p.hasIntegers() {
		marks := make([]int32, len(p.Integer))
		for j, integer := range p.Integer {
			if integer {
				marks[j] = 1
			}
		}
		integrality = m.passInts(marks)
	}

	// Without integers, pass no integrality: HiGHS then solves a linear program, with duals.
	m.mustCall("the problem", highsPassMip, highs,
		uint64(len(p.Cost)), uint64(len(p.RowLower)), uint64(len(p.Row)), byColumns, minimise, api.EncodeF64(0),
		m.passFloats(p.Cost), m.passFloats(p.Lower), m.passFloats(p.Upper), m.passFloats(p.RowLower), m.passFloats(p.RowUpper),
		m.passInts(p.Start), m.passInts(p.Row), m.passFloats(p.Value), integrality)
}

// modelStatus maps HiGHS's codes that are not failures.
var modelStatus = map[int32]Status{7: Optimal, 8: Infeasible, 9: Unbounded, 10: Unbounded, 13: Feasible, 14: Feasible, 17: Feasible}

func (m *machine) readSolution(highs uint64, p *Problem) Solution {
	code := int32(m.callFunction(highsGetStatus, highs))
	status, known := modelStatus[code]
	if !known && m.err == nil {
		m.err = fmt.Errorf("HiGHS ends with model status %d", code)
	}

	s := Solution{Status: status}
	const feasiblePoint = 2

	// HiGHS has one code for a time limit with and without a feasible point.
	if status == Feasible && m.readInfo(highs, "primal_solution_status") != feasiblePoint {
		s.Status = Unsolved
	}

	if m.err != nil || s.Status != Optimal && s.Status != Feasible {
		return s
	}

	n, rows := len(p.Cost), len(p.RowLower)
	values, duals := m.allocateBytes(8*n), m.allocateBytes(8*rows)
	m.mustCall("the result", highsGetResult, highs, values, m.allocateBytes(8*n), m.allocateBytes(8*rows), duals)
	s.Objective = api.DecodeF64(m.callFunction(highsGetOptimum, highs))
	s.Values = m.readFloats(values, n)

	// A linear program is solved to its optimum; with integers, the bound is the search tree's.
	s.Bound = s.Objective
	if p.hasIntegers() {
		s.Bound = m.infoFloat(highs, "mip_dual_bound")
	} else {
		s.RowDuals = m.readFloats(duals, rows)
	}
	return s
}

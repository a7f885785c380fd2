// Package solver computes exact optima of linear and mixed integer programs with HiGHS, for comparison with plans and
// baselines. Nothing that serves requests uses it.
//
// The solver is the WebAssembly build of HiGHS 1.15.3 in the npm package highs, run by wazero: no cgo, no shared
// library, the same on every platform. The module has 3.5 MB and is not in the tree: deploy/highs/fetch.sh puts it
// below .cache, and Solve runs that script if the file is missing. Each release minifies its export names
// differently, so only one digest is accepted. The first compilation takes some seconds and is cached beside the
// file.
//
// All functions are safe for concurrent use; every Solve has its own memory.
package solver

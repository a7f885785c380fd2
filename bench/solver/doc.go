// Package solver finds exact optima of linear and mixed integer programs with HiGHS. Plans and
// baselines are compared with what it returns; nothing that serves uses it.
//
// The solver is the WebAssembly build of HiGHS 1.15.3 in the npm package highs, run by wazero: no
// cgo, no shared library, the same on every platform. The module is 3.5 MB and is not in the tree:
// deploy/highs/fetch.sh puts it below .cache, and Solve runs that script when the file is missing.
// Its export names are minified anew for each release, so exactly one digest is accepted. Compiling
// takes some seconds the first time and is cached beside the file.
//
// All functions are safe for concurrent use; every Solve has a memory of its own.
package solver

// Package app describes applications: directed acyclic graphs of stages under one deadline (Rim §3.1, where they are
// mDAGs). A stage asks a model or a family, or calls a hook, a Go function of the frontend. Stages are joined by
// named tensors, as in Triton's ensembles: a stage takes tensors by their names and gives others.
//
// A hook may give a list, of which every frame has another number of elements: the crops of a picture's boxes. A
// stage with Each asks its model once for every element; what it gives are lists as long. A hook that takes lists
// joins them.
//
// The package is pure: it checks an application against the models that there are (Resolve), divides its latency
// among its stages (Graph.Split, by core/plan) and draws it (Graph.Draw). It runs nothing, reads no file and no
// clock. core/repo reads applications, frontend/app runs them.
//
// All functions may be called concurrently; a Graph is never written to once Resolve has returned it.
package app

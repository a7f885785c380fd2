// Package app describes applications: directed acyclic graphs of stages under one deadline (Rim §3.1, which calls
// them mDAGs). A stage sends requests to a model or a family, or calls a hook, a Go function in the frontend. Named
// tensors connect the stages, as in Triton's ensembles.
//
// A hook may return a list, whose number of elements varies by frame: the crops of a picture's boxes. A stage with
// Each sends its model one request per element; its outputs are lists of the same length. A hook that takes lists
// joins them.
//
// The package is pure: it checks an application against the available models (Resolve), splits its latency among its
// stages (Graph.Split, by core/plan) and draws it (Graph.Draw). It runs nothing, reads no file and no clock.
// core/repo reads applications, frontend/app runs them.
//
// All functions may be called concurrently; a Graph does not change after Resolve has returned it.
package app

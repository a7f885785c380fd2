// Package app describes applications: directed acyclic graphs of stages under one deadline (Rim §3.1, where they are
// mDAGs). A stage asks a model or a family, or calls a hook, a Go function of the frontend. Named tensors join stages, as
// in Triton's ensembles: a stage takes tensors by their names and gives others.
//
// A hook may give a list, whose number of elements differs from frame to frame, such as the crops of a picture's boxes. A
// stage with Each asks its model once per element, and gives lists of the same length. A hook that takes lists joins them.
//
// The package is pure. It checks an application against the available models (Resolve), divides its latency among its
// stages (Graph.Split, by core/plan) and draws it (Graph.Draw). It runs nothing, and reads no file and no clock. core/repo
// reads applications, frontend/app runs them.
//
// All functions may be called concurrently; a Graph is never written to after Resolve has returned it.
package app

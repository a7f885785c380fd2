// Package model is the vocabulary that every room speaks: what a tensor, a model and the place of an input are, and
// why a request can end without an output. One type stands for one thing: core/repo reads them, core/wire encodes
// them, backends and the scheduler use them, and frontends show them.
//
// The package decides nothing, does no I/O and imports nothing of this module.
package model

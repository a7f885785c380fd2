// Package model is the vocabulary that all rooms share: tensors, models, descriptors of inputs, and the reasons for
// which a request can end without an output. core/repo reads these types, core/wire encodes them, backends and the
// scheduler use them, and frontends show them.
//
// The package decides nothing, does no I/O and imports nothing of this module.
package model

// Package repo reads a model repository in Triton's layout:
//
//	<dir>/<model>/config.pbtxt            text protobuf, inference.ModelConfig
//	<dir>/<model>/<version>/model.onnx    the graph; the version is a positive integer
//	<dir>/<model>/<version>/profile.json  measured ℓ(b), one entry per host kind (ours)
//	<dir>/<model>/<labels>.txt            class names, if an output names a label_filename
//	<dir>/<application>/application.yaml  a graph of models and hooks (ours); an ensemble's config.pbtxt is one, too
//
// It parses and checks. It runs no model, watches no directory, and leaves reading ONNX files to Options.Graph.
//
// Beyond Triton's platforms, a model may have `platform: "emulated"`. Such a model has no file, takes alpha_ms·b + beta_ms
// for a batch of b, of a GPU's part gpu_use, and answers with a pattern of its input.
//
// Invariants:
//
//	R1  A model that cannot be read never hides another: Open returns every good one and one error per bad one.
//	R2  An error in a file names the file, and in config.pbtxt the line, column, field, value and what is allowed.
//	R3  A profile table is non-empty, positive and non-decreasing, on reading and on writing.
//	R4  profile.json is replaced completely or not at all, also on a full disk.
//
// All functions are safe for concurrent use, except for two writers of one profile.json, which the caller must serialise:
// the later one wins and may lose the earlier one's host kind.
package repo

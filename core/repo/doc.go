// Package repo reads a model repository laid out as Triton's:
//
//	<dir>/<model>/config.pbtxt            text protobuf, inference.ModelConfig
//	<dir>/<model>/<version>/model.onnx    the graph; the version is a positive integer
//	<dir>/<model>/<version>/profile.json  measured ℓ(b), one entry per host kind (ours)
//	<dir>/<model>/<labels>.txt            class names, if an output names a label_filename
//	<dir>/<application>/application.yaml  a graph of models and hooks (ours); an ensemble's config.pbtxt is one, too
//
// It parses and checks; it runs no model and watches no directory, and leaves looking into ONNX files to Options.Graph.
//
// Beyond Triton's platforms a model may say `platform: "emulated"`: it has no file, takes
// alpha_ms·b + beta_ms for a batch of b and answers a pattern of its input.
//
// Invariants:
//
//	R1  A model that cannot be read never hides another: Open returns every good one and one error
//	    per bad one.
//	R2  An error in a file names the file, and in config.pbtxt the line, column, field, value and
//	    what is allowed.
//	R3  A profile table is non-empty, positive and non-decreasing, on reading as on writing.
//	R4  profile.json is replaced whole or not at all, also on a full disk.
//
// All functions are safe for concurrent use, but two writers of one profile.json must be
// serialised by their caller: the later one wins and may forget the earlier one's host kind.
package repo

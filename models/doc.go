// Package models makes the models in this directory: nine small networks in three families, of which five have two
// early exits each, trained from scratch on rendered street scenes, and the code that decodes a detector's answer.
//
// The directory is a Triton-compatible model repository; README.md lists each model's inputs, outputs and accuracy.
// Make writes model.onnx, config.pbtxt, labels.txt and README.md and nothing else. Nothing here runs on the request
// path.
//
// Invariants:
//
//	M1  The same seed gives the same weights on one kind of processor.
//	M2  Accuracy is measured on the written files, on images whose seed training never uses.
//
// Functions may be called concurrently; Make trains several models in parallel.
package models

// Package models makes the models in this directory: nine small networks in three families, trained
// from scratch on rendered street scenes, and the code that reads a detector's answer.
//
// The directory is a Triton-compatible model repository; README.md tells what each model takes,
// answers and reaches. Make writes model.onnx, config.pbtxt, labels.txt and README.md and nothing
// else; nothing here runs on the request path.
//
// Invariants:
//
//	M1  The same seed gives the same weights on one kind of processor.
//	M2  Accuracy is measured on the files as written, on images whose seed training never uses.
//
// Functions may be called from any goroutine; Make trains several models beside each other.
package models

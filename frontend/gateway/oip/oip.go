// Package oip is the Open Inference Protocol (KServe v2) for gRPC as generated from
// open_inference.proto, which keeps the published names and field numbers. It holds no logic.
//
// To generate it anew: install protoc-gen-go v1.36.12 and protoc-gen-go-grpc v1.5.1 with
// `go install`, have protoc 3.21 or later, and run `go generate ./frontend/gateway/oip`. Where there is no protoc, the
// same plugins make the same code from the request of a compiler in Go, such as github.com/bufbuild/protocompile.
package oip

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative open_inference.proto

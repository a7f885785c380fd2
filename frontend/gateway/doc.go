// Package gateway serves the Open Inference Protocol (KServe v2) over REST and gRPC on top of the
// frontend library, with the extensions of Triton that its clients use: binary tensors,
// classification, statistics, configuration, repository index and streams. It also serves
// /metrics and the page. It does not schedule, batch or run models.
//
// A client sends tensors with a batch dimension: n rows become n requests, which the scheduler is
// free to batch with others' and whose outputs are gathered again. Rows share one fate: the call
// fails if one of them does.
//
// Every error is one sentence that names the field, its value and what is allowed, with the same
// meaning over REST (an HTTP status) and gRPC (a code).
//
// Concurrency: a Gateway's methods may be called by any goroutine.
package gateway

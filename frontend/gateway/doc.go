// Package gateway serves the Open Inference Protocol (KServe v2) over REST and gRPC, on top of the frontend library.
// It includes the extensions of Triton that Triton's clients use, such as binary tensors, classification, statistics,
// model configuration, the repository index and streams. It also serves /metrics and the operators' page. The gateway
// does not schedule, batch or run models.
//
// A client sends tensors with a batch dimension. A call with n rows becomes n requests. The scheduler may batch them
// with requests of other calls, and the gateway joins their outputs again. If one row fails, the whole call fails.
//
// An error is one sentence that names the field, its value and the values allowed. It means the same over REST, as an
// HTTP status, and over gRPC, as a code.
//
// Concurrency: any goroutine may call a Gateway's methods.
package gateway

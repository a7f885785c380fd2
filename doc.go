// Package downbeat runs deep-learning models for requests that carry deadlines. One program that imports it has a
// scheduler, a backend and a client in its own process:
//
//	config := downbeat.Default()
//	config.Models = "models" // a model repository, as Triton lays it out
//	system, err := downbeat.Start(ctx, config)
//	if err != nil {
//		return err
//	}
//	defer system.Close()
//
//	input, err := system.Client().NewInput("vehicle-s")
//	if err != nil {
//		return err
//	}
//	defer input.Free()
//	if err := input.Tensor("image").SetBytes(pixels); err != nil {
//		return err
//	}
//
//	ctx, cancel := context.WithTimeout(ctx, 25*time.Millisecond) // the request's deadline
//	defer cancel()
//	result, err := system.Client().Infer(ctx, "vehicle-s", input)
//	if errors.Is(err, frontend.ErrDropped) {
//		// No batch could have met the deadline.
//	}
//	scores, err := result.Output("scores").Float32s()
//
// Config.Roles says which parts run in the process, so that the same call starts a scheduler alone, a backend that
// connects to it, or a gateway that serves REST and gRPC; command downbeat is little more than that call. A program that
// only asks a scheduler elsewhere needs package frontend alone. Tests of such a program start a server in their process
// with package frontend/frontendtest. The folder examples has programs that compile outside of this module.
//
// Package downbeat decides nothing and moves no bytes: it opens what the other packages hold, in order, and closes it in
// reverse. It runs on Linux; elsewhere the package is empty.
//
// Concurrency: a System's methods may be called by any number of goroutines.
package downbeat

// Package downbeat serves deep-learning models to requests that carry deadlines. A program can run a scheduler, a backend
// and a client in its own process:
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
//	if errors.Is(err, context.DeadlineExceeded) {
//		return nil // no output in time: the scheduler dropped the request as soon as no batch could meet its deadline
//	}
//	if err != nil {
//		return err
//	}
//	defer result.Release()
//	scores, err := result.Output("scores").Float32s()
//
// Config.Roles selects the parts that run in the process: a scheduler alone, a backend that connects to a scheduler, a
// gateway that serves REST and gRPC, or any combination. The serving commands of the downbeat binary parse flags and call
// Start. A program that only sends requests to a remote scheduler needs package frontend alone; its tests can start a
// server in their own process with package frontend/frontendtest. The folder examples has complete programs.
//
// Package downbeat makes no scheduling decisions and moves no bytes. Start opens the parts, which other packages
// implement, in order of dependency, and Close closes them in reverse. The package needs Linux; elsewhere it is empty.
//
// Concurrency: a System's methods may be called by any number of goroutines.
package downbeat

// Package frontendtest runs a server in the process of a test, for programs that use package frontend: the scheduler that
// serves, the data plane over loopback, and models whose outputs are Go functions of their inputs. Deadlines are met, or
// requests dropped, as a deployment would with models that take as long.
//
//	server := frontendtest.Start(t, frontendtest.Model{
//		Name:    "double",
//		Inputs:  []frontend.TensorInfo{{Name: "x", Datatype: "FP32", Shape: []int64{2}}},
//		Outputs: []frontend.TensorInfo{{Name: "y", Datatype: "FP32", Shape: []int64{2}}},
//		Answer: func(r frontendtest.Row) error {
//			x, err := r.Input("x").Float32s()
//			if err != nil {
//				return err
//			}
//			return r.Output("y").SetFloat32s([]float32{2 * x[0], 2 * x[1]})
//		},
//	})
//	client := server.Client(t) // or frontend.Dial to server.Addr, as the program does
//
// It runs no model files; downbeat.Start does. Tensors of BYTES are not supported.
//
// Concurrency: a Server's methods may be called by any number of goroutines; Answer is called by one at a time for each
// server.
package frontendtest

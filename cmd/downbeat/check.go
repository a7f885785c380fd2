//go:build linux

package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"

	"downbeat.dev/backend/layered"
	"downbeat.dev/cuda"
	"downbeat.dev/deploy/host"
)

// checkCommand reports what this host offers and what to change, or whether applications fit their models.
func checkCommand() command {
	return command{"check", "report what this host offers (GPUs, RDMA, memory locks, ONNX Runtime) and what to change; with -models, check applications instead",
		func(_ context.Context, args []string) error {
			fs := flag.NewFlagSet("downbeat check", flag.ContinueOnError)
			a := applicationCheck{dirs: "", draw: "", rate: 10}
			a.register(fs)
			if err := parse(fs, args); err != nil {
				return err
			}

			// A wrong rate is an error also where it has no effect.
			if err := a.checkFlags(); err != nil {
				return err
			}
			if a.dirs != "" {
				return a.run(os.Stdout)
			}
			fmt.Printf("downbeat %s\n\n", buildVersion())
			host.Table(os.Stdout, append(host.Parts(), host.Kernel("/")...))

			// Only a host with a GPU has GPU libraries to report.
			if n, err := cuda.Count(); err == nil && n > 0 {
				names, err := layered.Libraries(0)
				if err != nil {
					return err
				}
				fmt.Printf("\nproducts and convolutions on the GPU: %s\n", cmp.Or(names, "our kernels (no cuBLASLt, no cuDNN found)"))
			}
			return nil
		}}
}

package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"downbeat.dev/deploy/host"
	"downbeat.dev/rdma"
)

// checkCommand says what this host offers and what to change.
func checkCommand() command {
	return command{"check", "what this host offers: GPUs, RDMA, memory locks, ONNX Runtime; what to change",
		func(_ context.Context, args []string) error {
			fs := flag.NewFlagSet("check", flag.ContinueOnError)
			if err := fs.Parse(args); err != nil {
				return err
			}
			fmt.Printf("downbeat %s\n\n", buildVersion())
			host.Table(os.Stdout, append(host.Parts(), host.Kernel("/")...))
			fmt.Println()
			for _, a := range rdma.Providers() {
				fmt.Printf("data plane %-8s ok=%-6t %s\n", a.Name, a.OK, a.Reason)
			}
			return nil
		}}
}

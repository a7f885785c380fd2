package main

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"runtime/debug"
)

// version is set at link time; a plain go build reports what the module system knows.
var version string

func versionCommand() command {
	return command{name: "version", summary: "print the version",
		run: func(_ context.Context, args []string) error {
			if err := parse(flag.NewFlagSet("downbeat version", flag.ContinueOnError), args); err != nil {
				return err
			}
			fmt.Printf("downbeat %s %s %s/%s\n", buildVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return nil
		}}
}

func buildVersion() string {
	// A release sets the version when it links; a build from source has what Go recorded.
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "devel"
}

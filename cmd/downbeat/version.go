package main

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"runtime/debug"
)

// version is set at link time. In a plain go build it is empty and the module system's version is reported.
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
	// Releases set version at link time; a build from source uses the version that Go recorded.
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "devel"
}

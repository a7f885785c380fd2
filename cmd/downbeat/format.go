package main

import (
	"fmt"

	"downbeat.dev/deploy"
)

// checkFormat refuses what -o does not know.
func checkFormat(format string) error {
	if format != "table" && format != "json" {
		return deploy.UsageError(fmt.Sprintf("-o %s: want table or json", format))
	}
	return nil
}

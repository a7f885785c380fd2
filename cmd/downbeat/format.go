package main

import (
	"fmt"

	"downbeat.dev/deploy"
)

// checkFormat rejects values of -o other than table and json.
func checkFormat(format string) error {
	if format != "table" && format != "json" {
		return deploy.UsageError(fmt.Sprintf("-o %s: want table or json", format))
	}
	return nil
}

package main

import (
	"fmt"

	"downbeat.dev/deploy"
)

// usageErrorf returns an error of the command line: a flag that is unknown, a wrong value, or an extra argument. The
// command ends with exit code 2. What only a file, a server or the host can decide is no such error and ends with 1.
func usageErrorf(format string, args ...any) error {
	return deploy.UsageError(fmt.Sprintf(format, args...))
}

// checkFormat rejects values of -o other than table and json.
func checkFormat(format string) error {
	if format != "table" && format != "json" {
		return usageErrorf("-o %s: want table or json", format)
	}
	return nil
}

package main

import (
	"fmt"
	"math"
	"strconv"

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

// formatMemory formats a number of bytes for people, in the largest unit of which there is at least one and with one
// digit after the point unless that is 0; "-" if the number is unknown.
func formatMemory(n int64) string {
	if n <= 0 {
		return "-"
	}

	unit, size := "B", float64(n)
	for _, larger := range []string{"KiB", "MiB", "GiB"} {
		// What would be printed as 1024 is one of the next unit.
		if size < 1023.95 {
			break
		}
		unit, size = larger, size/1024
	}
	return strconv.FormatFloat(math.Round(size*10)/10, 'f', -1, 64) + " " + unit
}

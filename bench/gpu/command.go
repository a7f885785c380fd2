package gpu

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	"downbeat.dev/cuda"
)

// Command runs the measurement or the check and writes the result to w. Without a GPU the error matches
// cuda.ErrNotSupported.
func Command(ctx context.Context, o Options, w io.Writer) (err error) {
	dev, err := o.openDevice()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()

	if o.Libraries != "none" {
		l, err := dev.OpenLibraries(o.Libraries)
		if err != nil {
			return err
		}
		defer l.Close()
		o.found = l.Names()
	}

	r := report{Device: dev.Properties(), Rates: H200, Libraries: o.found}
	if r.GPUs, err = cuda.Inventory(); err != nil && !errors.Is(err, cuda.ErrNotSupported) {
		return err
	}

	if o.Check {
		err = o.checkAll(ctx, dev, &r)
	} else {
		err = o.measureAll(ctx, dev, &r)
	}

	// Write the result even after an error: measured rows cost minutes.
	if o.JSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return errors.Join(err, e.Encode(r))
	}
	return errors.Join(err, r.writeTable(w))
}

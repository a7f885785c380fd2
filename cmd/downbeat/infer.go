//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"image"
	_ "image/gif" // registers GIF with image.Decode
	_ "image/jpeg"
	_ "image/png"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"downbeat.dev"
	"downbeat.dev/core/model"
	"downbeat.dev/deploy"
	"downbeat.dev/frontend"
	"downbeat.dev/models/scene"
)

func inferCommand() command {
	return command{"infer", "send one request to a running scheduler: MODEL FILE (a picture, or the bytes of tensors)", runInfer}
}

func runInfer(ctx context.Context, args []string) error {
	var timeout time.Duration
	c, rest, err := deploy.Parse("infer", args, func(fs *flag.FlagSet) {
		fs.DurationVar(&timeout, "timeout", 0, "time until the request's deadline; 0: the model's SLO")
		fs.Usage = func() {
			fmt.Fprintf(fs.Output(), "Usage: downbeat infer [flags] MODEL FILE\n\nFILE is a PNG, JPEG or GIF for a model that takes a picture. For other models it holds the bytes of the input\ntensors, in the order of the model's inputs. A FILE of - is standard input.\n\n")
			fs.PrintDefaults()
		}
	})

	switch {
	case err != nil:
		return err
	case len(rest) != 2:
		return usageErrorf("infer: want a model and a file: downbeat infer [flags] MODEL FILE")
	case timeout < 0 || timeout > time.Hour:
		return usageErrorf("infer: timeout: %v: want 0 to 1h", timeout)
	}

	if c.LogLevel == deploy.Default().LogLevel {
		c.LogLevel = "warn" // the command prints one answer; it needs no service log
	}

	s, err := startClient(ctx, c)
	if err != nil {
		return err
	}

	// A client starts before any backend has announced its models.
	awaitModels(ctx, s)
	err = inferOnce(ctx, s.Client(), rest[0], rest[1], timeout)
	return errors.Join(err, s.Close())
}

// modelsMax limits the wait for models: backends measure their models before they announce them.
const modelsMax = 10 * time.Second

// awaitModels returns when a model is ready or after modelsMax.
func awaitModels(ctx context.Context, s *downbeat.System) {
	t := time.NewTicker(50 * time.Millisecond)
	defer t.Stop()
	for begin, told := time.Now(), false; time.Since(begin) < modelsMax; {
		if slices.ContainsFunc(s.Client().Models(), func(m *frontend.Model) bool { return m.Ready }) {
			return
		}

		// Print a notice only after half a second, so that a usual start prints nothing.
		if !told && time.Since(begin) > time.Second/2 {
			told = true
			s.Log().Warn("waiting for a backend: the scheduler has no ready model")
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

func inferOnce(ctx context.Context, c *frontend.Client, name, file string, timeout time.Duration) error {
	m := c.Model(name, "")
	if m == nil {
		return fmt.Errorf("infer: model %q: not served here; %s", name, modelNames(c))
	}

	in, err := readInput(m, file)
	if err != nil {
		return err
	}

	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}

	r, err := c.InferCopy(ctx, name, in)
	if err != nil {
		return err
	}
	defer r.Release()

	printAnswer(os.Stdout, m, scoreLabels(m), r.Data)
	fmt.Printf("answered in %.2f ms, %.2f ms of it on the executor\n", float64(r.Elapsed.Microseconds())/1000, float64(r.Exec.Microseconds())/1000)
	return nil
}

func modelNames(c *frontend.Client) string {
	var names []string
	for _, m := range c.Models() {
		names = append(names, m.Name)
	}
	if len(names) == 0 {
		return "no backend serves any model"
	}
	return "the models are " + strings.Join(names, ", ")
}

// readInput reads the file as the model's input, and scales a picture to the size of the input.
func readInput(m *frontend.Model, file string) ([]byte, error) {
	from := os.Stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		from = f
	}

	// The limit keeps a wrong file name from filling the memory.
	raw, err := io.ReadAll(io.LimitReader(from, 64<<20))
	if err != nil {
		return nil, err
	}

	// Recognise a picture by its content, not by its file name.
	picture, format, err := image.Decode(strings.NewReader(string(raw)))
	if err != nil { // not a picture: use the bytes as the tensors
		if m.InputBytes >= 0 && len(raw) != m.InputBytes {
			return nil, fmt.Errorf("%s: %d bytes and no PNG, JPEG or GIF: model %q takes %d bytes: %s", file, len(raw), m.Name, m.InputBytes, describeTensors(m.Inputs))
		}
		return raw, nil
	}

	// A picture needs a model with one input of height, width and three channels of bytes.
	if len(m.Inputs) != 1 || m.Inputs[0].Datatype != model.Uint8 || len(m.Inputs[0].Shape) != 3 || m.Inputs[0].Shape[2] != 3 {
		return nil, fmt.Errorf("%s is a %s picture, but model %q takes %s, not UINT8 [height width 3]", file, format, m.Name, describeTensors(m.Inputs))
	}
	return scene.FromImage(picture, int(m.Inputs[0].Shape[1]), int(m.Inputs[0].Shape[0])).Pix, nil
}

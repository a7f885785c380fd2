package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"downbeat.dev/bench/sizing"
	"downbeat.dev/core/arrivals"
)

// sizeFlags are the flags of plan size.
type sizeFlags struct {
	rates, slos, kinds, prices string
	profiles, models           string
	families                   []string
	arrivals, svg, format      string
	bad                        float64 // percent
	o                          sizing.Options
}

// planSize computes the number and kind of GPUs that models need at given rates.
func planSize() command {
	return command{name: "size", summary: "find the number and kind of GPUs that models need at given request rates, in virtual time",
		run: func(ctx context.Context, args []string) error {
			f := sizeFlags{o: sizing.DefaultOptions()}
			fs := flag.NewFlagSet("downbeat plan size", flag.ContinueOnError)
			f.register(fs)

			if err := parse(fs, args); err != nil {
				return err
			}

			// Read all inputs before the first simulation, which may take minutes.
			services, kinds, err := f.load()
			switch _, unreadable := errors.AsType[*os.PathError](err); {
			case unreadable:
				return fmt.Errorf("plan size: %w", err)
			case err != nil:
				return usageErrorf("plan size: %v", err)
			}
			return f.run(ctx, services, kinds)
		}}
}

func (f *sizeFlags) register(fs *flag.FlagSet) {
	fs.StringVar(&f.rates, "rate", "", "request rates: `MODEL=REQUESTS/S,…` (required)")
	fs.StringVar(&f.slos, "slo", "", "SLOs: `MODEL=DURATION,…`, or one duration for all models; empty: the SLOs of the profiles")

	// Sources of profiles.
	fs.StringVar(&f.kinds, "kind", "", "published profiles of these `kinds`: 1080ti, a100; empty: both, unless -profiles or -models names others")
	fs.StringVar(&f.profiles, "profiles", "", "profiles of further kinds of GPU: `KIND=FILE,…`, each a CSV file with the header model,alpha_ms,beta_ms,slo_ms")
	fs.StringVar(&f.models, "models", "", "model repository `directory`: one kind for each host on which downbeat profile measured its models")
	fs.StringVar(&f.prices, "price", "", "prices per GPU and hour: `KIND=PRICE,…`; the cheapest answer comes first")
	fs.Func("family", "a family: `NAME=MODEL:ACCURACY+MODEL:ACCURACY…`; any of these models may answer NAME; may be repeated", func(text string) error {
		f.families = append(f.families, text)
		return nil
	})

	// Requirements, and parameters of the simulation.
	fs.Float64Var(&f.bad, "bad", 100*f.o.BadMax, "largest `percentage` of each model's requests that may miss their SLO")
	fs.Float64Var(&f.o.AccuracyMin, "accuracy", 0, "smallest mean `accuracy` of each family's answers, 0 to 1")
	fs.IntVar(&f.o.GPUsMax, "gpus-max", f.o.GPUsMax, "largest `number` of GPUs to try")
	fs.StringVar(&f.arrivals, "arrivals", "poisson", "`process`: poisson, constant, or gamma:SHAPE (smaller is burstier)")
	fs.DurationVar(&f.o.Ctrl, "ctrl", 0, "delay of a control message")
	fs.DurationVar(&f.o.Data, "data", 0, "delay per input of a batch")
	fs.IntVar(&f.o.Seeds, "seeds", f.o.Seeds, "`number` of seeds; their requests are counted together")
	fs.DurationVar(&f.o.Span, "span", f.o.Span, "simulated time per seed")

	fs.StringVar(&f.svg, "svg", "", "write an SVG of the results with more and fewer GPUs to this `file`")
	fs.StringVar(&f.format, "o", "table", "output `format`: table or json")
}

// load builds services and kinds from the flags.
func (f *sizeFlags) load() ([]sizing.Service, []sizing.Kind, error) {
	if err := checkFormat(f.format); err != nil {
		return nil, nil, err
	}
	var err error
	if f.o.Gaps, err = arrivals.ParseGaps(f.arrivals); err != nil {
		return nil, nil, fmt.Errorf("-%w", err)
	}

	// The flags are in percent, the simulator's values are shares.
	f.o.BadMax = f.bad / 100

	services, err := f.services()
	if err != nil {
		return nil, nil, err
	}

	source := sizing.Source{Repo: f.models, Files: map[string]string{}}
	for pair := range eachPair(f.profiles) {
		kind, file, err := cutPair("profiles", pair)
		if err != nil {
			return nil, nil, err
		}
		source.Files[kind] = file
	}

	// Published profiles are used only if no others are named.
	switch {
	case f.kinds != "":
		source.Zoos = strings.Split(f.kinds, ",")
	case f.models == "" && f.profiles == "":
		source.Zoos = []string{"1080ti", "a100"}
	}

	kinds, err := source.Load(services)
	if err != nil {
		return nil, nil, err
	}
	return services, kinds, errors.Join(f.setPrices(kinds), f.o.Validate(), sizing.CheckServices(services, f.o.Span))
}

// eachPair splits a list at its commas; an empty list yields nothing.
func eachPair(list string) func(yield func(string) bool) {
	if list == "" {
		return func(func(string) bool) {}
	}
	return strings.SplitSeq(list, ",")
}

// cutPair splits NAME=VALUE.
func cutPair(flag, pair string) (name, value string, err error) {
	name, value, ok := strings.Cut(strings.TrimSpace(pair), "=")
	if !ok || name == "" || value == "" {
		return "", "", fmt.Errorf("-%s %q: want NAME=VALUE", flag, pair)
	}
	return name, value, nil
}

func (f *sizeFlags) services() ([]sizing.Service, error) {
	var out []sizing.Service
	for pair := range eachPair(f.rates) {
		name, text, err := cutPair("rate", pair)
		if err != nil {
			return nil, err
		}

		rate, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("-rate %s=%s: want a number of requests/s", name, text)
		}
		if slices.ContainsFunc(out, func(s sizing.Service) bool { return s.Name == name }) {
			return nil, fmt.Errorf("-rate: model %s appears twice", name)
		}

		// A model is a family of one variant until -family names more.
		out = append(out, sizing.Service{Name: name, Rate: rate, Variants: []sizing.Variant{{Model: name, Accuracy: 1}}})
	}
	if len(out) == 0 {
		return nil, errors.New("-rate is missing: want MODEL=REQUESTS/S,…")
	}

	// Refuse a flag for a model without a rate: it would have no effect.
	at := func(flag, name string) (*sizing.Service, error) {
		k := slices.IndexFunc(out, func(s sizing.Service) bool { return s.Name == name })
		if k < 0 {
			return nil, fmt.Errorf("-%s: %s has no -rate", flag, name)
		}
		return &out[k], nil
	}

	for _, family := range f.families {
		name, members, err := cutPair("family", family)
		if err != nil {
			return nil, err
		}
		s, err := at("family", name)
		if err != nil {
			return nil, err
		}
		if s.Variants, err = parseVariants(name, members); err != nil {
			return nil, err
		}
	}
	return out, f.setSLOs(out, at)
}

func parseVariants(family, members string) ([]sizing.Variant, error) {
	var out []sizing.Variant
	for member := range strings.SplitSeq(members, "+") {
		// The user states the accuracy, since profiles contain only times.
		model, text, ok := strings.Cut(member, ":")
		accuracy, err := strconv.ParseFloat(text, 64)
		if !ok || err != nil {
			return nil, fmt.Errorf("-family %s: %q: want MODEL:ACCURACY, the accuracy from 0 to 1", family, member)
		}
		out = append(out, sizing.Variant{Model: model, Accuracy: accuracy})
	}
	return out, nil
}

// setSLOs parses one duration for all services, or a list of NAME=DURATION.
func (f *sizeFlags) setSLOs(all []sizing.Service, at func(flag, name string) (*sizing.Service, error)) error {
	// A single duration applies to all models.
	if d, err := time.ParseDuration(f.slos); err == nil {
		if d <= 0 {
			return fmt.Errorf("-slo %v: want a duration above 0, such as 50ms", d)
		}
		for i := range all {
			all[i].SLO = d
		}
		return nil
	}

	for pair := range eachPair(f.slos) {
		name, text, err := cutPair("slo", pair)
		if err != nil {
			return err
		}
		s, err := at("slo", name)
		if err != nil {
			return err
		}
		if s.SLO, err = time.ParseDuration(text); err != nil || s.SLO <= 0 {
			return fmt.Errorf("-slo %s=%s: want a duration above 0, such as 50ms", name, text)
		}
	}
	return nil
}

func (f *sizeFlags) setPrices(kinds []sizing.Kind) error {
	for pair := range eachPair(f.prices) {
		name, text, err := cutPair("price", pair)
		if err != nil {
			return err
		}

		// A price for a kind that is not simulated is a mistake.
		k := slices.IndexFunc(kinds, func(k sizing.Kind) bool { return k.Name == name })
		price, err := strconv.ParseFloat(text, 64)
		if k < 0 || err != nil || !(price > 0 && price < 1e6) {
			return fmt.Errorf("-price %s=%s: want a kind that is asked for, and a price above 0", name, text)
		}
		kinds[k].Price = price
	}
	return nil
}

func (f *sizeFlags) run(ctx context.Context, services []sizing.Service, kinds []sizing.Kind) error {
	answers, err := sizing.Size(ctx, services, kinds, f.o, func(a sizing.Answer) { fmt.Fprintf(os.Stderr, "%s: done\n", a.Kind) })
	if err != nil {
		return fmt.Errorf("plan size: %w", err)
	}

	families := len(f.families) > 0
	if f.svg != "" {
		picture, err := os.Create(f.svg)
		if err != nil {
			return err
		}
		if err := errors.Join(sizing.Draw(picture, answers, f.o, families), picture.Close()); err != nil {
			return fmt.Errorf("-svg %s: %w", f.svg, err)
		}
	}

	if f.format == "json" {
		return sizing.WriteJSON(os.Stdout, answers)
	}
	return sizing.WriteTable(os.Stdout, answers, families)
}

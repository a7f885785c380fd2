package swarm

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// Script writes options as text: a line "Name value" for each option that is not zero, in the order of the struct.
func (o Options) Script() string {
	var b strings.Builder
	for i, v := range fieldsOf(&o) {
		if !v.IsZero() {
			fmt.Fprintf(&b, "%s %v\n", reflect.TypeFor[Options]().Field(i).Name, v.Interface())
		}
	}
	return b.String()
}

// ParseScript reads the output of Script. It skips empty lines and lines that start with #.
func ParseScript(text string) (Options, error) {
	var o Options
	n := 0
	for line := range strings.Lines(text) {
		n++
		words := strings.Fields(line)
		if len(words) == 0 || words[0][0] == '#' {
			continue
		}

		// Names are the struct's field names, so a script can hold every option.
		v := reflect.ValueOf(&o).Elem().FieldByName(words[0])
		if len(words) != 2 || !v.IsValid() {
			return o, fmt.Errorf("line %d: %q: want the name of an option and its value", n, strings.TrimSpace(line))
		}
		if err := setField(v, words[1]); err != nil {
			return o, fmt.Errorf("line %d: %s: %q: %w", n, words[0], words[1], err)
		}
	}
	return o, nil
}

func setField(v reflect.Value, text string) error {
	switch v.Kind() {
	case reflect.Bool:
		x, err := strconv.ParseBool(text)
		v.SetBool(x)
		return err

	case reflect.Float64:
		x, err := strconv.ParseFloat(text, 64)
		v.SetFloat(x)
		return err

	case reflect.Uint32, reflect.Uint64:
		x, err := strconv.ParseUint(text, 10, v.Type().Bits())
		v.SetUint(x)
		return err

	default:
		x, err := strconv.ParseInt(text, 10, v.Type().Bits())
		v.SetInt(x)
		return err
	}
}

func fieldsOf(o *Options) []reflect.Value {
	s := reflect.ValueOf(o).Elem()
	all := make([]reflect.Value, s.NumField())
	for i := range all {
		all[i] = s.Field(i)
	}
	return all
}

// Shrink simplifies options as long as they fail. It sets each option to zero, to one, or to half, until nothing
// helps or the tries are used up, and returns the simplest options that failed. The seed stays.
func Shrink(o Options, tries int, fails func(Options) bool) Options {
	for better := true; better; {
		better = false
		for i := range fieldsOf(&o) {
			for _, simpler := range simplerValues(fieldsOf(&o)[i]) {
				if tries--; tries < 0 {
					return o
				}
				x := o

				fieldsOf(&x)[i].Set(simpler)

				// Keep the seed: another seed is another run, which might fail for another reason.
				if x.Seed == o.Seed && fails(x) {
					o, better = x, true
					break
				}
			}
		}
	}
	return o
}

// simplerValues returns simpler values for an option, the simplest first.
func simplerValues(v reflect.Value) (all []reflect.Value) {
	add := func(set func(x reflect.Value)) {
		x := reflect.New(v.Type()).Elem()
		if set(x); !x.Equal(v) && (len(all) == 0 || !x.Equal(all[len(all)-1])) {
			all = append(all, x)
		}
	}

	if v.IsZero() {
		return nil
	}
	add(func(reflect.Value) {})

	switch v.Kind() {
	case reflect.Int, reflect.Int64:
		for _, n := range []int64{1, v.Int() / 2, v.Int() - 1} {
			if n > 0 {
				add(func(x reflect.Value) { x.SetInt(n) })
			}
		}
	case reflect.Float64:
		// Round, so that the script stays readable.
		rounded, _ := strconv.ParseFloat(strconv.FormatFloat(v.Float(), 'g', 1, 64), 64)
		add(func(x reflect.Value) { x.SetFloat(rounded) })
	}
	return all
}

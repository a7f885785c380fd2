package deploy

import (
	"bytes"
	"flag"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// fieldsOf are the names in a file of a configuration's fields, those of sections included, and where each field lies.
func fieldsOf(v reflect.Value, prefix string) map[string]any {
	all := map[string]any{}
	for i := range v.NumField() {
		name := prefix + v.Type().Field(i).Tag.Get("yaml")
		if f := v.Field(i); f.Kind() == reflect.Struct {
			for k, p := range fieldsOf(f, name+".") {
				all[k] = p
			}
		} else {
			all[name] = f.Addr().Interface()
		}
	}
	return all
}

// TestEveryFieldIsAKnob: the table has a row for each field of the file, once, of its type, and each row has all that is
// told of a knob.
func TestEveryFieldIsAKnob(t *testing.T) {
	var c Config
	fields, flags := fieldsOf(reflect.ValueOf(&c).Elem(), ""), map[string]bool{}
	for k := range knobs() {
		if k.field(&c) != fields[k.Name] {
			t.Errorf("%s: the row points at another field, or the file has no such key", k.Name)
		}
		delete(fields, k.Name)

		if k.Help == "" || k.Readers != nil && len(k.Readers) == 0 {
			t.Errorf("%s: help %q, readers %q", k.Name, k.Help, k.Readers)
		}
		if flags[k.Flag()] {
			t.Errorf("%s: flag -%s is another knob's, too", k.Name, k.Flag())
		}
		flags[k.Flag()] = true
	}
	for name := range fields {
		t.Errorf("%s has no row in the table of knobs", name)
	}
}

// TestKnobsAreFew: fifteen for a room at most.
func TestKnobsAreFew(t *testing.T) {
	for _, r := range Rooms {
		if n := len(r.Knobs); n == 0 || n > 15 {
			t.Errorf("room %q (%s) has %d knobs, want 1 to 15", r.Name, r.About, n)
		}
	}
}

// TestReadersHaveTheFlag, and other commands have none: one that is ignored deceives.
func TestReadersHaveTheFlag(t *testing.T) {
	commands := []string{"demo", "demo drift", "serve", "scheduler", "backend", "gateway", "infer", "load", "rollback"}
	for k := range knobs() {
		for _, command := range commands {
			fs := flag.NewFlagSet("", flag.ContinueOnError)
			c := Default()
			c.registerFlags(fs, command)
			f := fs.Lookup(k.Flag())

			if reads := k.Readers == nil || slices.Contains(k.Readers, command); reads != (f != nil) {
				t.Errorf("%s: %s reads it: %v, has a flag: %v", k.Name, command, reads, f != nil)
			} else if f != nil && f.Value.(flag.Getter).Get() != k.Default {
				t.Errorf("%s: the flag's default is %v, the table's %v", k.Name, f.Value, k.Default)
			}
		}

		for _, reader := range k.Readers {
			if !slices.Contains(commands, reader) {
				t.Errorf("%s: its reader %q is no command with knobs", k.Name, reader)
			}
		}
	}
}

// TestEveryCheckRefuses: a value that is far from what is allowed is refused by the knob's name, and the default is not. Of
// files and switches every value of the type may be right.
func TestEveryCheckRefuses(t *testing.T) {
	bad := map[reflect.Type]any{reflect.TypeFor[string](): "no: good / value", reflect.TypeFor[int](): -1,
		reflect.TypeFor[float64](): math.NaN(), reflect.TypeFor[time.Duration](): time.Nanosecond}
	for k := range knobs() {
		c := Default()
		field := reflect.ValueOf(k.field(&c)).Elem()
		value, has := bad[field.Type()]
		if k.check == nil || !has {
			continue
		}
		switch k.Name {
		case "models":
			value = ""
		case "protocol.server_name":
			value = strings.Repeat("x", 257)
		}

		field.Set(reflect.ValueOf(value))
		err := c.Check()
		if err == nil || !strings.Contains(err.Error(), "config: "+k.Name+": ") || !strings.Contains(err.Error(), "is not allowed: ") || !strings.Contains(err.Error(), "want ") {
			t.Errorf("%s: %v: got %v, want an error that names it and says what is allowed", k.Name, value, err)
		}
	}
}

var update = flag.Bool("update", false, "write the tables of knobs in ../docs/DEPLOYMENT.md anew")

// TestDocumentsHaveTheTable: docs/DEPLOYMENT.md has exactly the tables that the code has.
func TestDocumentsHaveTheTable(t *testing.T) {
	const path, begin, end = "../docs/DEPLOYMENT.md", "<!-- knobs: go test ./deploy -run Table -update -->\n", "<!-- knobs end -->\n"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := bytes.Cut(text, []byte(begin))
	table, after, ends := bytes.Cut(rest, []byte(end))
	if !begins || !ends {
		t.Fatalf("%s has no place for the table of knobs", path)
	}

	want := Markdown() + "\n"
	if *update {
		if err := os.WriteFile(path, []byte(string(before)+begin+want+end+string(after)), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if string(table) != want {
		t.Errorf("%s does not have the table of knobs as the code has it: go test ./deploy -run Table -update writes it", path)
	}
}

// TestHelpHasEveryKnob with its default.
func TestHelpHasEveryKnob(t *testing.T) {
	var b strings.Builder
	if err := Help(&b); err != nil {
		t.Fatal(err)
	}
	for k := range knobs() {
		if !strings.Contains(b.String(), "\n  "+k.Name+" ") || !strings.Contains(b.String(), " "+k.DefaultText()+" ") || strings.Contains(b.String(), "`"+k.Name) {
			t.Errorf("help lacks %s, or its default %s", k.Name, k.DefaultText())
		}
	}
}

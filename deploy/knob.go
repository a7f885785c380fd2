package deploy

import (
	"flag"
	"fmt"
	"io"
	"iter"
	"reflect"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Room is a section of the table of knobs: the knobs of one room.
type Room struct {
	Name  string // "" for the knobs of all parts
	About string
	Knobs []Knob
}

// Knob is one setting of a deployment. Rooms has all knobs and is the source of the defaults, the flags, the checks
// at start, "downbeat help config" and the tables in docs/DEPLOYMENT.md.
type Knob struct {
	Name    string   // in the file; a dot follows the name of a section
	Default any      // of the field's type
	Readers []string // commands that read it and have a flag for it; nil: all. A file may hold every knob for any command
	Help    string   // a word in backquotes stands for the value

	field func(*Config) any   // pointer to the field
	flag  string              // empty: the part of Name after the dot, with dashes
	check func(*Config) error // returns what is wrong and what is allowed; nil: every value of the type is valid
}

// Flag returns the name of the knob's flag.
func (k *Knob) Flag() string {
	if k.flag != "" {
		return k.flag
	}
	return strings.ReplaceAll(k.Name[strings.IndexByte(k.Name, '.')+1:], "_", "-")
}

// Usage returns Help without backquotes.
func (k *Knob) Usage() string { return strings.ReplaceAll(k.Help, "`", "") }

// DefaultText is the default as people write it.
func (k *Knob) DefaultText() string {
	if k.Default == "" {
		return "empty"
	}
	return fmt.Sprint(k.Default)
}

// ReadersText names the commands.
func (k *Knob) ReadersText() string {
	if k.Readers == nil {
		return "all"
	}
	return strings.Join(k.Readers, ", ")
}

// knobs are all knobs, in the table's order.
func knobs() iter.Seq[*Knob] {
	return func(yield func(*Knob) bool) {
		for r := range Rooms {
			for i := range Rooms[r].Knobs {
				if !yield(&Rooms[r].Knobs[i]) {
					return
				}
			}
		}
	}
}

// Default returns the configuration of one machine on loopback.
func Default() Config {
	var c Config
	for k := range knobs() {
		reflect.ValueOf(k.field(&c)).Elem().Set(reflect.ValueOf(k.Default))
	}
	return c
}

// registerFlags registers the flag of each knob that a command reads, with the present value as the default.
func (c *Config) registerFlags(fs *flag.FlagSet, command string) {
	for k := range knobs() {
		if k.Readers != nil && !slices.Contains(k.Readers, command) {
			continue // one that is ignored deceives
		}
		switch p := k.field(c).(type) {
		case *string:
			fs.StringVar(p, k.Flag(), *p, k.Help)
		case *int:
			fs.IntVar(p, k.Flag(), *p, k.Help)
		case *bool:
			fs.BoolVar(p, k.Flag(), *p, k.Help)
		case *float64:
			fs.Float64Var(p, k.Flag(), *p, k.Help)
		case *time.Duration:
			fs.DurationVar(p, k.Flag(), *p, k.Help)
		}
	}
}

// Help prints the table of knobs for people at a terminal.
func Help(w io.Writer) error {
	fmt.Fprintln(w, `Knobs of the file that -config names, in YAML: a name with a dot lies in a section (cluster: {election: URL}). A command has a flag for
each knob that it reads: what follows the dot, with dashes. Flags win over the file; -print-config prints what is in force.`)

	for _, r := range Rooms {
		fmt.Fprintf(w, "\n%s\n", strings.ReplaceAll(r.title(), "`", ""))
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for i := range r.Knobs {
			k := &r.Knobs[i]
			fmt.Fprintf(tw, "  %s\t%s\t%s (%s)\n", k.Name, k.DefaultText(), k.Usage(), k.ReadersText())
		}
		if err := tw.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// Markdown returns the tables of knobs in docs/DEPLOYMENT.md.
func Markdown() string {
	var b strings.Builder
	for _, r := range Rooms {
		fmt.Fprintf(&b, "\n### %s\n\n| knob | default | read by | |\n|---|---|---|---|\n", r.title())
		for i := range r.Knobs {
			k := &r.Knobs[i]
			def := k.DefaultText()
			if k.Default != "" {
				def = "`" + def + "`"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", k.Name, def, k.ReadersText(), strings.ReplaceAll(k.Usage(), "|", `\|`))
		}
	}
	return b.String()
}

func (r *Room) title() string {
	if r.Name == "" {
		return r.About
	}
	return "`" + r.Name + "`: " + r.About
}

package figure

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Entry is one figure of a paper on the page that lists all figures.
type Entry struct {
	ID, Title string
	// Command makes the figure; Dir is its directory, from the root of the repository.
	Command, Dir string
	// Where says where the figure is measured: virtual time, processes on this host, hardware.
	Where string
}

// Paper is one paper's section of the page.
type Paper struct {
	Name, Title string
	Entries     []Entry
	Notes       []string // inputs that are unavailable, or facts about the paper, one sentence each
}

// WritePage lists the figures of papers with their claims, which it reads from below root. Figures that have not been
// made are listed with their command only.
func WritePage(w io.Writer, root string, papers []Paper) error {
	var b strings.Builder
	b.WriteString("# Figures of the papers\n\nThe command of a figure makes its CSV and its picture. `downbeat bench figures -only none` writes this page from the results in bench/results.\n\n" +
		"The second table of each paper has one row per claim: what the paper prints, what we found, and a verdict. *holds* and *differs* say whether our result\n" +
		"confirms the claim. *beside* means that our inputs differ from the paper's, so that our number neither confirms nor refutes the claim. *no number* means that\n" +
		"the paper gives only a direction or a curve. Where a claim does not hold, the row gives the reason, as far as we know it.\n")
	for _, p := range papers {
		if err := writePaper(&b, root, p); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func writePaper(b *strings.Builder, root string, p Paper) error {
	fmt.Fprintf(b, "\n## %s\n\n| figure | shows | runs in | command | results |\n|---|---|---|---|---|\n", p.Title)
	for _, e := range p.Entries {
		fmt.Fprintf(b, "| %s | %s | %s | `%s` | %s |\n", e.ID, e.Title, e.Where, e.Command, links(root, e))
	}

	// A directory has one file of claims, which is read once.
	claims := map[string]map[string][]Claim{}
	fmt.Fprintf(b, "\n| figure | claim | published | ours | |\n|---|---|---|---|---|\n")
	for _, e := range p.Entries {
		if claims[e.Dir] == nil {
			read, err := ReadClaims(filepath.Join(root, e.Dir))
			if err != nil {
				return err
			}
			claims[e.Dir] = read
		}
		for _, c := range claims[e.Dir][e.ID] {
			verdict := string(c.Verdict)
			if c.Why != "" {
				verdict += ": " + c.Why
			}
			fmt.Fprintf(b, "| %s | %s | %s | %s | %s |\n", e.ID, c.What, c.Published, c.Ours, verdict)
		}
	}

	if len(p.Notes) > 0 {
		b.WriteString("\n")
	}
	for _, n := range p.Notes {
		b.WriteString("- " + n + "\n")
	}
	return nil
}

// links returns links to the existing files, relative to docs.
func links(root string, e Entry) string {
	var out []string
	for _, name := range []string{e.ID + ".csv", e.ID + ".svg"} {
		if _, err := os.Stat(filepath.Join(root, e.Dir, name)); err == nil {
			out = append(out, fmt.Sprintf("[%s](../%s/%s)", filepath.Ext(name)[1:], e.Dir, name))
		}
	}

	// A figure that was never made has no links.
	if len(out) == 0 {
		return "not made"
	}
	return strings.Join(out, ", ")
}

// Package table prints what was measured.
package table

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Result is what one system did: the same rows for each.
type Result struct {
	System string
	Rows   []Row
}

// Row is one figure.
type Row struct {
	Name  string
	Value float64
	Unit  string
	// Lower says that less is better.
	Lower bool
}

// Print prints a line for each workload: what each system did, and how much better systems are than their rivals. Above 1 is better,
// for latency and memory too.
func Print(out io.Writer, results []Result, rivals map[string][]string) {
	if len(results) == 0 {
		return
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer w.Flush()
	header := []string{"workload"}
	for _, r := range results {
		header = append(header, r.System)
	}
	for _, p := range pairs(results, rivals) {
		header = append(header, p[0].System+" : "+p[1].System)
	}
	fmt.Fprintln(w, strings.Join(header, "\t")+"\t")
	for i, first := range results[0].Rows {
		line := []string{first.Name + " (" + first.Unit + ")"}
		for _, r := range results {
			line = append(line, fmt.Sprintf("%.4g", r.Rows[i].Value))
		}
		for _, p := range pairs(results, rivals) {
			ratio := p[0].Rows[i].Value / p[1].Rows[i].Value
			if first.Lower {
				ratio = 1 / ratio
			}
			line = append(line, fmt.Sprintf("%.2f", ratio))
		}
		fmt.Fprintln(w, strings.Join(line, "\t")+"\t")
	}
}

func pairs(results []Result, rivals map[string][]string) [][2]Result {
	var pairs [][2]Result
	for _, ours := range results {
		for _, theirs := range results {
			if slices.Contains(rivals[ours.System], theirs.System) {
				pairs = append(pairs, [2]Result{ours, theirs})
			}
		}
	}
	return pairs
}

package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// printTable prints a line for each workload: what each system did, and how much better kubase is than its rivals on the same kind of
// database and than etcd. Above 1 is better, for latency and memory too.
func printTable(out io.Writer, results []result) {
	if len(results) == 0 {
		return
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer w.Flush()
	header := []string{"workload"}
	for _, r := range results {
		header = append(header, r.system)
	}
	for _, p := range pairs(results) {
		header = append(header, p[0].system+" : "+p[1].system)
	}
	fmt.Fprintln(w, strings.Join(header, "\t")+"\t")
	for i, first := range results[0].rows {
		line := []string{first.name + " (" + first.unit + ")"}
		for _, r := range results {
			line = append(line, fmt.Sprintf("%.4g", r.rows[i].value))
		}
		for _, p := range pairs(results) {
			ratio := p[0].rows[i].value / p[1].rows[i].value
			if first.lower {
				ratio = 1 / ratio
			}
			line = append(line, fmt.Sprintf("%.2f", ratio))
		}
		fmt.Fprintln(w, strings.Join(line, "\t")+"\t")
	}
}

func pairs(results []result) [][2]result {
	var pairs [][2]result
	for _, ours := range results {
		engine, ok := strings.CutPrefix(ours.system, "kubase-")
		if !ok {
			continue
		}
		for _, theirs := range results {
			if theirs.system == "etcd" || theirs.system == "kine-"+engine {
				pairs = append(pairs, [2]result{ours, theirs})
			}
		}
	}
	return pairs
}

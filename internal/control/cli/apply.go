// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
	"weft/internal/control/fabricfile"
)

func exportCommand(a *app) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "export",
		Short: "print the configuration of the fabric, as weft apply reads it",
		Long: `Print the configuration of the fabric in YAML: partitions, virtual Ethernet
switches, groups, and the devices and IP links that this node keeps. "weft
apply" makes it so again, on this fabric or on an empty one. Secrets are not in
it.`,
		Example: `  weft export > fabric.yaml
  weft apply -f fabric.yaml --dry-run`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVarP(&format, "output", "o", "yaml", "yaml or json")
	cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"yaml", "json"},
		cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if format != "yaml" && format != "json" {
			return usage("weft export -o json", "-o must be yaml or json, not %q", format)
		}
		d, err := get(cmd.Context(), a, api.ExportDesired)
		if err != nil {
			return err
		}
		node, err := get(cmd.Context(), a, api.ExportNode)
		if err != nil {
			return err
		}
		d.Node = &node
		if format == "json" {
			return printJSON(a.env.Out, d)
		}
		_, err = a.env.Out.Write(fabricfile.Encode(d))
		return err
	}
	return cmd
}

func historyCommand(a *app) *cobra.Command {
	var since string
	cmd := a.show(&cobra.Command{
		Use:   "history",
		Short: "list the changes of the configuration: time, author, text",
		Long: `List the changes of the configuration, the oldest first: partitions, virtual
Ethernet switches, groups, settings of the manager. USER@MEMBER is the user
that ran the command, and the member. The last 1000 changes are kept.`,
		Example: `  weft history --since 24h
  weft history --since 2026-11-23
  weft history -o json`,
		Args: cobra.NoArgs,
	}, func(cmd *cobra.Command, _ []string, print printer) error {
		from, err := sinceOf(since, time.Now())
		if err != nil {
			return usage("weft history --since 24h", "cannot show the history: %v", err)
		}
		list, err := call(cmd.Context(), a, api.ListHistory, from)
		if err != nil {
			return err
		}
		return print(list, func(w *screen) { writeTable(w, "no changes", historyColumns, list) })
	})
	cmd.Flags().StringVar(&since, "since", "", "a duration before now such as 24h, a day, or a time of RFC 3339")
	return cmd
}

// sinceOf reads a duration before now, a day, or a time.
func sinceOf(s string, now time.Time) (api.Since, error) {
	if s == "" {
		return "", nil
	}
	var at time.Time
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		at = now.Add(-d)
	} else if at, err = time.ParseInLocation("2006-01-02", s, time.Local); err == nil {
	} else if at, err = time.Parse(time.RFC3339, s); err != nil {
		return "", fmt.Errorf("--since takes a duration such as 24h, a day such as 2026-11-23, or a time such as "+
			"2026-11-23T14:00:00Z, not %q", s)
	}
	return api.Since(at.UTC().Format(time.RFC3339)), nil
}

var historyColumns = []column[api.HistoryEntry]{
	{head: ">NO", cell: func(h api.HistoryEntry) any { return h.Number }, wide: 1},
	{head: "TIME", cell: func(h api.HistoryEntry) any { return h.At.Local().Format("2006-01-02 15:04:05") }},
	{head: "BY", cell: func(h api.HistoryEntry) any { return author(&h) }},
	{head: "COMMAND", cell: func(h api.HistoryEntry) any { return h.Op }},
	{head: "CHANGE", cell: func(h api.HistoryEntry) any { return h.Text }},
}

// author is the author of a change: USER@MEMBER.
func author(h *api.HistoryEntry) string {
	who := h.User
	switch {
	case who == "" && h.UID >= 0:
		who = fmt.Sprintf("uid %d", h.UID)
	case who == "":
		who = "the node"
	}
	return who + "@" + cmp.Or(h.Member, "local")
}

const fileHelp = `FILE is YAML, as "weft export" prints it; - is the standard input. A section
that is not in FILE stays as it is: "vesws: []" states that there is no switch.
Ports are GUIDs, or DEVICE@NODE; in partitions, =limited may follow, and ALL is
every port.`

// fileFlag adds -f to a command.
func fileFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVarP(file, "file", "f", "", "file with the configuration; - is the standard input")
	cmd.MarkFlagFilename("file", "yaml", "yml")
}

// desiredOf reads the file of a command.
func desiredOf(a *app, what, file string) (d api.Desired, err error) {
	if file == "" {
		return d, usage(what+" -f fabric.yaml", "a file is missing: %s -f FILE", what)
	}
	var b []byte
	if file == "-" {
		file = "the standard input"
		if a.env.In != nil {
			b, err = io.ReadAll(io.LimitReader(a.env.In, fabricfile.MaxSize+1))
		}
	} else {
		b, err = readBounded(file)
	}
	if err != nil {
		return d, &api.Error{Code: api.CodeInvalid, What: "cannot read the configuration", Why: err.Error(),
			Fix: "weft export > fabric.yaml"}
	}
	if d, err = fabricfile.Decode(b); err != nil {
		return d, &api.Error{Code: api.CodeInvalid, What: "cannot read " + file, Why: err.Error(),
			Fix: "weft export prints the form"}
	}
	return d, nil
}

// readBounded reads a file up to one octet more than a configuration may have.
func readBounded(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, fabricfile.MaxSize+1))
}

// plan is what a file would change.
type plan struct {
	fabric api.Desired
	api.Comparison
	ofFabric int              // how many of the changes are of the fabric, which come first
	node     *api.DesiredNode // nil: the file states nothing of this node
	is       api.DesiredNode  // what this node has
	another  string           // the GUID of another node of which the file states something
}

// makePlan compares a file with what there is.
func makePlan(ctx context.Context, a *app, d api.Desired) (p plan, err error) {
	p.fabric, p.node, p.fabric.Node = d, d.Node, nil
	if p.Comparison, err = call(ctx, a, api.CompareDesired, p.fabric); err != nil {
		return p, err
	}
	p.ofFabric = len(p.Changes)
	if p.node == nil {
		return p, nil
	}
	if p.is, err = get(ctx, a, api.ExportNode); err != nil {
		return p, err
	}
	if guid := p.node.GUID; guid != "" && guid != p.is.GUID {
		p.another, p.node = guid, nil
		return p, nil
	}
	if err := checkNode(p.node); err != nil {
		return p, err
	}
	is := p.is
	p.Changes = append(p.Changes, fabricfile.Compare(api.Desired{Node: &is}, api.Desired{Node: p.node}, nil)...)
	return p, nil
}

// checkNode reports what is wrong with devices and links, with the line.
func checkNode(n *api.DesiredNode) error {
	bad := func(line int, format string, args ...any) error {
		return &api.Error{Code: api.CodeInvalid, What: "cannot read the configuration",
			Why: fmt.Sprintf("line %d: %s", line, fmt.Sprintf(format, args...)), Fix: "weft export prints the form"}
	}
	for i := range n.Devices {
		d := &n.Devices[i]
		f, err := functionOf(d)
		if err == nil {
			err = f.Validate()
		}
		if err != nil {
			return bad(d.Line, "device %s: %v", d.Name, err)
		}
		if slices.ContainsFunc(n.Devices[:i], func(o api.DesiredDevice) bool { return o.Name == d.Name }) {
			return bad(d.Line, "device %s is there twice", d.Name)
		}
	}
	for i := range n.Links {
		l := &n.Links[i]
		r := linkOf(l)
		if err := r.Validate(); err != nil {
			return bad(l.Line, "%v", err)
		}
		if slices.ContainsFunc(n.Links[:i], func(o api.DesiredLink) bool {
			return fabricfile.LinkKey(&o) == fabricfile.LinkKey(l)
		}) {
			return bad(l.Line, "IP links of %s are there twice", fabricfile.LinkKey(l))
		}
	}
	return nil
}

func functionOf(d *api.DesiredDevice) (f api.NewFunction, err error) {
	f = api.NewFunction{Name: d.Name, Segment: d.Segment, Addrs: d.Addresses, Routes: d.Routes}
	f.Weight = d.Weight
	if d.Disabled {
		f.Enabled = new(bool)
	}
	for level, w := range d.QoS {
		n, err := strconv.Atoi(level)
		if err != nil {
			return f, fmt.Errorf("a QoS level is a number, not %q", level)
		}
		if f.QoS == nil {
			f.QoS = map[int]int{}
		}
		f.QoS[n] = w
	}
	b, err := json.Marshal(d.Quotas)
	if err != nil {
		return f, err
	}
	dec := json.NewDecoder(strings.NewReader(string(b)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&f.Quotas); err != nil {
		return f, fmt.Errorf("quotas: %w", err)
	}
	return f, nil
}

func linkOf(l *api.DesiredLink) api.IPRequest {
	return api.IPRequest{Device: l.Device, PKeys: l.PKeys, Backend: api.BackendTUN, Addrs: l.Addresses,
		Routes: l.Routes, Params: l.Params}
}

// print prints what a plan changes.
func (p *plan) print(w *screen) {
	if len(p.Changes) == 0 {
		fmt.Fprintln(w, "nothing differs")
	}
	signs := map[string]string{api.ChangeAdd: w.style(green, "+"), api.ChangeDelete: w.style(red, "-"),
		api.ChangeModify: w.style(yellow, "~")}
	for _, c := range p.Changes {
		text := c.What
		if c.How != "" {
			text += ": " + c.How
		}
		for i, part := range wrap(printable(text), w.width-4) {
			if i == 0 {
				fmt.Fprintln(w, signs[c.Kind]+" "+part)
			} else {
				fmt.Fprintln(w, "    "+part)
			}
		}
	}
	if p.another != "" {
		fields{w, 5}.line("note:", "devices and links of node %s are left: the file is applied to them on that node",
			p.another)
	}
}

func diffCommand(a *app) *cobra.Command {
	var file string
	cmd := a.show(&cobra.Command{
		Use:   "diff -f FILE",
		Short: "print what weft apply would change; exit code 1 if anything",
		Long: `Print what "weft apply" would change: + is added, - is deleted, ~ is changed.
The exit code is 0 if nothing differs, 1 if something does, 2 if FILE is wrong.

` + fileHelp,
		Example: `  weft diff -f fabric.yaml`,
		Args:    cobra.NoArgs,
	}, func(cmd *cobra.Command, _ []string, print printer) error {
		d, err := desiredOf(a, "weft diff", file)
		if err != nil {
			return err
		}
		p, err := makePlan(cmd.Context(), a, d)
		if err != nil {
			return err
		}
		if err := print(p.Comparison, func(w *screen) {
			p.print(w)
			if p.Lost != nil {
				a.printLost(p.Lost)
			}
		}); err != nil || len(p.Changes) == 0 {
			return err
		}
		return &codeError{code: ExitFailed}
	})
	fileFlag(cmd, &file)
	return cmd
}

func applyCommand(a *app) *cobra.Command {
	var file string
	var dry bool
	cmd := a.show(&cobra.Command{
		Use:   "apply -f FILE",
		Short: "make the configuration of the fabric that of a file",
		Long: `Make the configuration of the fabric that of a file. Partitions, virtual
Ethernet switches and groups change at once, or not at all; then devices and IP
links of this node one by one.

` + fileHelp,
		Example: `  weft apply -f fabric.yaml --dry-run
  weft apply -f fabric.yaml --yes`,
		Args: cobra.NoArgs,
	}, func(cmd *cobra.Command, _ []string, print printer) error {
		ctx := cmd.Context()
		d, err := desiredOf(a, "weft apply", file)
		if err != nil {
			return err
		}
		p, err := makePlan(ctx, a, d)
		if err != nil {
			return err
		}
		losses, err := p.losses(ctx, a)
		if err != nil {
			return err
		}
		if !dry && len(p.Changes) > 0 {
			if err := p.confirm(a, losses); err != nil {
				return err
			}
			if err := p.apply(ctx, a, losses); err != nil {
				return err
			}
		}
		return print(p.Comparison, func(w *screen) {
			p.print(w)
			switch {
			case dry:
				for _, l := range losses {
					a.printLost(l)
				}
			case !dry && len(p.Changes) > 0:
				fmt.Fprintf(w, "applied %s\n", plural(len(p.Changes), "change"))
			}
		})
	})
	fileFlag(cmd, &file)
	cmd.Flags().BoolVar(&dry, "dry-run", false, "print what would change, and change nothing")
	return confirmable(a, cmd)
}

// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft/internal/api"
)

func (a *app) sm() *cobra.Command {
	status := func(use string) *cobra.Command {
		return look(a, &cobra.Command{
			Use:   use,
			Short: "show the node's subnet manager: state, master, sweeps, problems",
		}, func(ctx context.Context, c *api.Client) (api.Manager, error) { return c.Manager(ctx) }, printManager)
	}
	cmd := status("sm")
	cmd.AddCommand(status("status"), a.sweep())
	return cmd
}

// lastSweeps and lastNotes are how many a person reads; JSON has all.
const lastSweeps, lastNotes = 5, 8

func printManager(w io.Writer, m api.Manager) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-9s %s\n", name, printable(fmt.Sprintf(format, args...)))
	}
	switch m.State {
	case "off":
		line("manager", "none at this node (--sm off)")
		return
	case "external":
		line("manager", "a program's, not the built-in one (--sm external)")
		return
	case "failed":
		line("manager", "none: %s", m.Store.Down)
		return
	}
	elected := "not elected in the store"
	if m.Elected {
		elected = fmt.Sprintf("elected in the store, term %d", m.Term)
	}
	line("manager", "%s, lid %d, port GUID %s, priority %d, %s", m.State, m.LID, m.PortGUID, m.Priority, elected)
	if x := m.Master; x.GUID != "" || x.Name != "" {
		who := x.Name
		if who == "" {
			who = x.GUID
		}
		if x.Peer != "" {
			who += " at " + x.Peer
		}
		if x.Dir != "" {
			who += ", in " + x.Dir
		}
		line("master", "%s", who)
	} else {
		line("master", "nobody that this node knows")
	}
	for _, o := range m.Others {
		line("other", "%s, lid %d, priority %d, %s", o.GUID, o.LID, o.Priority, o.State)
	}
	if m.Routed == "" || m.Routed == m.Engine {
		line("routing", "%s", m.Engine)
	} else {
		line("routing", "%s, of %s", m.Routed, m.Engine)
	}
	if m.Sweeping != "" {
		line("sweeping", "%s", m.Sweeping)
	}
	storeLine(line, &m.Store)
	for _, p := range m.Problems {
		line("problem", "%s: %s", p.Where, p.What)
	}
	if len(m.Problems) == 0 && m.State == "master" {
		line("problems", "none")
	}
	if s := last(m.Sweeps, lastSweeps); len(s) > 0 {
		fmt.Fprintln(w)
		t := table{heads: []string{"SWEEP", "WHY", "STARTED", ">TOOK", ">NODES", ">SWITCHES", ">LINKS", ">SENT", ">RESENT", ">FAILED"}}
		for _, x := range s {
			t.row(x.Kind, x.Why, clock(x.StartedAt), x.TookNS.Round(10*time.Microsecond), x.Nodes, x.Switches, x.Links, x.Sent, x.Resent, x.Failed)
		}
		t.write(w)
	}
	if notes := last(m.Notes, lastNotes); len(notes) > 0 {
		fmt.Fprintln(w)
		t := table{heads: []string{"TIME", "NOTE"}}
		for _, x := range notes {
			t.row(clock(x.At), x.Text)
		}
		t.write(w)
	}
}

func last[T any](s []T, n int) []T { return s[max(0, len(s)-n):] }

func clock(t time.Time) string { return t.Local().Format("15:04:05.000") }

func storeLine(line func(name, format string, args ...any), s *api.Store) {
	if s.Down != "" {
		line("store", "%s, does not answer: %s", s.Kind, s.Down)
		return
	}
	var parts []string
	if len(s.Endpoints) > 0 {
		parts = append(parts, strings.Join(s.Endpoints, " "))
	}
	if s.Members > 0 {
		parts = append(parts, plural(s.Members, "member"))
	}
	parts = append(parts, fmt.Sprintf("revision %d", s.Revision), sizeText(uint64(s.SizeBytes)))
	line("store", "%s, %s", s.Kind, strings.Join(parts, ", "))
}

func (a *app) store() *cobra.Command {
	cmd := &cobra.Command{Use: "store", Short: "look into the store of the subnet manager", Args: cobra.ArbitraryArgs, RunE: group}
	status := look(a, &cobra.Command{Use: "status", Short: "show how the store is"},
		func(ctx context.Context, c *api.Client) (api.Store, error) { return c.Store(ctx) }, printStore)
	cmd.AddCommand(status, a.storeList())
	return cmd
}

func printStore(w io.Writer, s api.Store) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-9s %s\n", name, printable(fmt.Sprintf(format, args...)))
	}
	storeLine(line, &s)
	if s.Version != "" {
		line("etcd", "%s, led by %s", s.Version, s.Leader)
	}
	if s.Dir != "" {
		line("dir", "%s", s.Dir)
	}
	if s.MaxBytes > 0 {
		line("size", "%s, %s of it in use, at most %s", sizeText(uint64(s.SizeBytes)), sizeText(uint64(s.UsedBytes)), sizeText(uint64(s.MaxBytes)))
	}
}

func (a *app) storeList() *cobra.Command {
	return a.show(&cobra.Command{
		Use:   "list [TREE]",
		Short: "list the keys of the store; -o json has the values",
		Args:  cobra.MaximumNArgs(1),
	}, func(cmd *cobra.Command, args []string, print func(any, func()) error) error {
		tree := ""
		if len(args) == 1 {
			tree = args[0]
		}
		return a.query(cmd.Context(), func(ctx context.Context, c *api.Client) error {
			list, err := c.StoreEntries(ctx, tree)
			if err != nil {
				return err
			}
			return print(list, func() {
				t := table{heads: []string{"KEY", ">REVISION", ">SIZE", "KEPT"}}
				for _, e := range list {
					kept := "for good"
					if e.Leased {
						kept = "as long as its owner lives"
					}
					t.row(e.Key, e.Revision, e.Size, kept)
				}
				if len(list) == 0 {
					fmt.Fprintln(a.env.Out, "no keys")
				}
				t.write(a.env.Out)
			})
		})
	})
}

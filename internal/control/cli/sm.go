// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
)

func (a *app) sm() *cobra.Command {
	status := func(use string) *cobra.Command {
		return look(a, &cobra.Command{
			Use:   use,
			Short: "show the node's subnet manager: state, master, sweeps, problems",
		}, func(ctx context.Context, c *api.Client) (api.Manager, error) { return api.Get(ctx, c, api.GetManager) }, printManager)
	}
	cmd := status("sm")
	cmd.AddCommand(status("status"), a.smSet(), a.sweep())
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
	if len(m.Roots) > 0 {
		line("roots", "%s", strings.Join(m.Roots, " "))
	}
	switch m.MKey {
	case "":
		none := "none: every node of the subnet may change its tables. fix: weft sm set --help"
		if m.State != "master" {
			none = "none at this node. fix, if the master has one: weft sm set --help"
		}
		line("m_key", "%s", none)
	case "node":
		line("m_key", "that of --m-key-file, %s", mkeyText(&m))
	default:
		line("m_key", "kept in the store, %s", mkeyText(&m))
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

func mkeyText(m *api.Manager) string {
	return fmt.Sprintf("protection %d, lapses %v after its managers are gone", m.MKeyProtect, time.Duration(m.MKeyLeaseS)*time.Second)
}

func (a *app) smSet() *cobra.Command {
	var routing, key, file string
	var roots []string
	var protect int
	var lease time.Duration
	cmd := &cobra.Command{
		Use:   "set",
		Short: "change how the subnet is managed: routing, M_Key",
		Long: `Change how the subnet is managed. It is kept in the store, and a sweep follows at once.

  weft sm set --routing ftree,updn --roots 02aa:0000:0001:0000
  weft sm set --m-key random --m-key-lease 30s

Routing engines, in the order of preference; the first that can serve the subnet does, else minhop:
  minhop   shortest ways
  updn     up towards roots, then down: no deadlocks; without --roots it chooses them
  ftree    fat trees of two and three levels

The M_Key guards the ports: who does not have it reads them, and changes nothing. Managers that share a store draw one
by themselves. Managers with stores of their own need the same one each: with this command on each of their nodes, or
"weft up --m-key-file". One that does not know it can take over only when the lease has passed without a manager that does.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			const what, fix = "cannot change the subnet manager", "weft sm set --help"
			var c api.ManagerChange
			for name, set := range map[string]func(){
				"routing": func() { c.Routing = &routing }, "roots": func() { c.Roots = &roots }, "m-key": func() { c.MKey = &key },
				"m-key-file": func() { c.MKey = &key }, "m-key-protect": func() { c.MKeyProtect = &protect },
				"m-key-lease": func() { s := int((lease + time.Second - 1) / time.Second); c.MKeyLeaseS = &s },
			} {
				if cmd.Flags().Changed(name) {
					set()
				}
			}
			if file != "" {
				b, err := os.ReadFile(file)
				if err != nil {
					return usage(fix, "%s: %v", what, err)
				}
				key = strings.TrimSpace(string(b))
			}
			if err := c.Validate(); err != nil {
				return usage(fix, "%s: %v", what, err)
			}
			return a.query(cmd.Context(), func(ctx context.Context, cl *api.Client) error {
				if err := api.Do(ctx, cl, api.ChangeManager, c); err != nil {
					return err
				}
				fmt.Fprintln(a.env.Out, "kept in the store; a sweep follows")
				return nil
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&routing, "routing", "", "route engines, in the order of preference: minhop, updn, ftree")
	f.StringSliceVar(&roots, "roots", nil, "GUIDs of the switches that updn takes as roots; \"\": it chooses")
	f.StringVar(&key, "m-key", "", "a number such as 0x1122334455667788, random, or none")
	f.StringVar(&file, "m-key-file", "", "file with the M_Key, for who does not want it in a command line")
	f.IntVar(&protect, "m-key-protect", 1, "1: who does not have the key reads, but not the key; 2, 3: nor anything else")
	f.DurationVar(&lease, "m-key-lease", time.Minute, "how long the key lasts without a manager, 15s or more")
	cmd.MarkFlagsMutuallyExclusive("m-key", "m-key-file")
	cmd.RegisterFlagCompletionFunc("routing", cobra.FixedCompletions([]string{"minhop", "updn", "ftree", "ftree,updn"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.RegisterFlagCompletionFunc("m-key", cobra.FixedCompletions([]string{api.MKeyRandom, api.MKeyNone}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
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
		func(ctx context.Context, c *api.Client) (api.Store, error) { return api.Get(ctx, c, api.GetStore) }, printStore)
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
			list, err := api.Call(ctx, c, api.ListStoreEntries, tree)
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

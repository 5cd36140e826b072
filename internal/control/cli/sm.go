// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
)

func smCommand(a *app) *cobra.Command {
	status := func(use string) *cobra.Command {
		return view(a, &cobra.Command{Use: use,
			Short: "show the node's subnet manager: state, master, sweeps, problems"}, api.GetManager, nil,
			printManager)
	}
	cmd := status("sm")
	cmd.AddCommand(status("status"), smSet(a), sweepCommand(a))
	return cmd
}

// lastSweeps and lastNotes are the numbers of lines for people; JSON has all.
const lastSweeps, lastNotes = 5, 8

func printManager(w *screen, m api.Manager) {
	line := fields{w, 9}.line
	switch m.State {
	case "off":
		line("manager", "none at this node (--sm off)")
		return
	case "external":
		line("manager", "another program, such as opensm (--sm external)")
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
		name := x.Name
		if name == "" {
			name = x.GUID
		}
		if x.Peer != "" {
			name += " at " + x.Peer
		}
		if x.Dir != "" {
			name += ", in " + x.Dir
		}
		line("master", "%s", name)
	} else {
		line("master", "none that this node has found")
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
		line("m_key", "from --m-key-file, %s", mkeyText(&m))
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
		writeTable(w, "", sweepColumns, s)
	}
	if notes := last(m.Notes, lastNotes); len(notes) > 0 {
		fmt.Fprintln(w)
		writeTable(w, "", noteColumns, notes)
	}
}

var sweepColumns = []column[api.Sweep]{
	{head: "SWEEP", cell: func(s api.Sweep) any { return s.Kind }},
	{head: "WHY", cell: func(s api.Sweep) any { return s.Why }},
	{head: "STARTED", cell: func(s api.Sweep) any { return clock(s.StartedAt) }},
	{head: ">TOOK", cell: func(s api.Sweep) any { return s.TookNS.Round(10 * time.Microsecond) }},
	{head: ">NODES", cell: func(s api.Sweep) any { return s.Nodes }},
	{head: ">SWITCHES", cell: func(s api.Sweep) any { return s.Switches }, wide: 3},
	{head: ">LINKS", cell: func(s api.Sweep) any { return s.Links }, wide: 2},
	{head: ">SENT", cell: func(s api.Sweep) any { return s.Sent }, wide: 4},
	{head: ">RESENT", cell: func(s api.Sweep) any { return s.Resent }, wide: 1},
	{head: ">FAILED", cell: func(s api.Sweep) any { return s.Failed }},
}

var noteColumns = []column[api.Note]{
	{head: "TIME", cell: func(n api.Note) any { return clock(n.At) }},
	{head: "NOTE", cell: func(n api.Note) any { return n.Text }},
}

func mkeyText(m *api.Manager) string {
	ports := "one for all ports"
	if m.MKeyPerPort {
		ports = "one for each port"
	}
	return fmt.Sprintf("%s, protection %d, lease %v", ports, m.MKeyProtect,
		time.Duration(m.MKeyLeaseS)*time.Second)
}

func smSet(a *app) *cobra.Command {
	var routing, key, file string
	var roots []string
	var protect int
	var lease time.Duration
	cmd := &cobra.Command{
		Use:   "set",
		Short: "change how the subnet is managed: routing, M_Key",
		Long: `Change how the subnet is managed. The change is kept in the store, and a sweep
follows at once.

Routing engines, in the order of preference; the first that can route the subnet
does, else minhop:
  minhop   shortest paths
  updn     up towards roots, then down: no deadlocks; finds roots if not given
  ftree    fat trees of two and three levels

The M_Key protects the tables of the ports: a manager without it can read them
and change nothing. Managers that share a store draw a secret by themselves,
which gives each port its own M_Key, and so does "random". A number is the M_Key
of all ports. With --m-key-protect 2 or 3 all ports have one in any case.
Managers with separate stores need the same M_Key each: run this command at each
of their nodes, or start them with "weft up --m-key-file". A manager without the
M_Key can take over only when the lease has passed without a manager with it.`,
		Example: `  weft sm set --routing ftree,updn --roots 02aa:0000:0001:0000
  weft sm set --m-key random --m-key-lease 30s`,
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
			if err := do(cmd.Context(), a, api.ChangeManager, c); err != nil {
				return err
			}
			fmt.Fprintln(a.env.Out, "kept in the store; a sweep follows")
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&routing, "routing", "", "route engines, in the order of preference: minhop, updn, ftree")
	f.StringSliceVar(&roots, "roots", nil, "GUIDs of the root switches of updn; \"\": updn chooses")
	f.StringVar(&key, "m-key", "", "a number such as 0x1122334455667788, random, or none")
	f.StringVar(&file, "m-key-file", "", "file with the M_Key, which keeps it out of the command line")
	f.IntVar(&protect, "m-key-protect", 1, "1: managers without the key can read all but the key; 2, 3: they can read nothing")
	f.DurationVar(&lease, "m-key-lease", time.Minute, "how long the key lasts without a manager, at least 15s")
	cmd.MarkFlagsMutuallyExclusive("m-key", "m-key-file")
	cmd.RegisterFlagCompletionFunc("routing", cobra.FixedCompletions([]string{"minhop", "updn", "ftree",
		"ftree,updn"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.RegisterFlagCompletionFunc("m-key", cobra.FixedCompletions([]string{api.MKeyRandom, api.MKeyNone},
		cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func last[T any](s []T, n int) []T { return s[max(0, len(s)-n):] }

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

var storeColumns = []column[api.StoreEntry]{
	{head: "KEY", cell: func(e api.StoreEntry) any { return e.Key }},
	{head: ">REVISION", cell: func(e api.StoreEntry) any { return e.Revision }},
	{head: ">SIZE", cell: func(e api.StoreEntry) any { return e.Size }},
	{head: "LIFETIME", cell: func(e api.StoreEntry) any {
		if e.Leased {
			return "while its owner lives"
		}
		return "permanent"
	}},
}

// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/host/rundir"
)

// JoinSpec is a host that joins a fabric.
type JoinSpec struct {
	Dir       string // of its node, which does not run
	Host      string // HOST or HOST:PORT of a member
	Token     string
	Name      string   // empty: of the host's name
	Roles     string   // empty: all that the token gives
	Addresses []string // HOST or HOST:PORT at which members reach it; empty: those of its interfaces
	Port      int      // of its trunks
}

// Joined is a host that joined.
type Joined struct {
	Name     string
	Fabric   string
	Members  int
	Roles    string
	Warnings []string
}

const tokenHelp = `Make a token, and print the command by which the next host joins the fabric. On
a host that is in no fabric yet, the first token makes one.

A token ends after an hour, and lets in one host. It is bound to the fabric's
CA: a host with the token trusts only members of this fabric. A host with the
line can join: pass it on as a password.

Roles: a voter may hold the store and the key of the CA; a manager may run the
subnet manager; root on an administrator, which is a voter as well, may change
the fabric; a leaf forwards nothing and needs one open UDP port. Without --role
a host may be voter, manager and administrator; "--role member" is none of them.`

func tokenCommand(a *app) *cobra.Command {
	cmd := tokenCreate(a, "token", "print the command by which the next host joins the fabric", tokenHelp)
	cmd.Example = `  weft token                               for one host
  weft token --uses 40 --for 4h            for forty hosts
  weft token --role leaf                   for a host behind a firewall`
	run := cmd.RunE
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknownCommand(cmd, args[0])
		}
		return run(cmd, args)
	}
	complete := names(a, api.ListTokens, func(t api.Token) string { return t.ID })
	cmd.AddCommand(tokenCreate(a, "create", "the same as weft token", tokenHelp),
		list(a, &cobra.Command{Use: "list", Short: "list the tokens that are valid, without their secrets"},
			api.ListTokens,
			nil, "no tokens: weft token makes one", tokenColumns),
		removal(a, "ID…", "delete tokens: they let in no host any more", "token", api.DeleteToken, byName, complete))
	return cmd
}

func tokenCreate(a *app, use, short, long string) *cobra.Command {
	var t api.NewToken
	cmd := a.show(&cobra.Command{Use: use, Short: short, Long: long, Args: cobra.NoArgs},
		func(cmd *cobra.Command, _ []string, print printer) error {
			made, err := call(cmd.Context(), a, api.CreateToken, t)
			if err != nil {
				return err
			}
			return print(made, func(w *screen) {
				// Whole, also on a narrow terminal: it is copied.
				fmt.Fprintf(w, "%s\n\n", printable(made.Line))
				line := fields{w, 6}.line
				if made.Founded != "" {
					line("made:", "fabric %s, with this host as its first member", made.Founded)
				}
				line("for:", "%s, until %s", hosts(made.Uses), dayTime(made.Ends))
				line("roles:", "%s", strings.Join(made.Roles, ", "))
			})
		})
	f := cmd.Flags()
	f.StringVar(&t.Roles, "role", "",
		"roles of the host: voter, manager, administrator, leaf, spine with commas, or member")
	f.IntVar(&t.Uses, "uses", 1, "number of hosts that it lets in; 0: any number")
	f.DurationVar(&t.LifeNS, "for", time.Hour, "time until it ends, at most 168h")
	return cmd
}

func hosts(n int) string {
	if n == 0 {
		return "any number of hosts"
	}
	return plural(n, "host")
}

// dayTime is a time as people have it, with the date.
func dayTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04")
}

var tokenColumns = []column[api.Token]{
	{head: "TOKEN", cell: func(t api.Token) any { return t.ID }},
	{head: ">USED", cell: func(t api.Token) any {
		if t.Uses == 0 {
			return t.Used
		}
		return fmt.Sprintf("%d of %d", t.Used, t.Uses)
	}},
	{head: "ENDS", cell: func(t api.Token) any { return dayTime(t.Ends) }},
	{head: "ROLES", cell: func(t api.Token) any { return strings.Join(t.Roles, ",") }},
	{head: "BY", cell: func(t api.Token) any { return t.By }, wide: 1},
}

func memberCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "member",
		Short: "show, rename, drain and remove the hosts of the fabric, and replace its secrets",
		Long: `Show and change the members: the hosts of the fabric.

A drained member accepts nothing new that would use it; it is drained when
those that it has have ended. A removed member is out at once, also if it comes
back: every secret that it had is replaced. Remove a drained member; --force
removes one that is in use, or that is gone. Rotate replaces the secrets of the
fabric, and removes no one.`,
		Example: `  weft member
  weft member rename b1 rack2-b1
  weft member set b1 --role spine
  weft member drain b1; weft member remove b1`,
		Args: cobra.ArbitraryArgs,
	}
	members := list(a, &cobra.Command{Use: "list", Short: "list the members"}, api.ListMembers, nil,
		"this host is in no fabric: weft token makes one, weft join enters one", memberColumns)
	listing(cmd, members)
	cmd.AddCommand(members, memberRename(a), memberSet(a), memberDrain(a), memberUndrain(a), memberRemove(a),
		memberRotate(a))
	return cmd
}

var memberColumns = []column[api.FabricMember]{
	{head: "MEMBER", cell: func(m api.FabricMember) any {
		if m.Self {
			return m.Name + " *"
		}
		return m.Name
	}},
	{head: "STATE", cell: func(m api.FabricMember) any { return m.State }},
	{head: "ROLES", cell: func(m api.FabricMember) any { return strings.Join(m.Roles, ",") }},
	{head: "ADDRESS", cell: func(m api.FabricMember) any {
		switch len(m.Addresses) {
		case 0:
			return ""
		case 1:
			return m.Addresses[0]
		}
		return fmt.Sprintf("%s +%d", m.Addresses[0], len(m.Addresses)-1)
	}},
	{head: ">USERS", cell: func(m api.FabricMember) any { return len(m.Users) + m.MoreUsers }, wide: 1},
	{head: "CERTIFICATE ENDS", cell: func(m api.FabricMember) any { return dayTime(m.CertificateEnds) }, wide: 2},
	{head: "VERSION", cell: func(m api.FabricMember) any { return m.Program }, wide: 3},
	{head: "GUID", cell: func(m api.FabricMember) any { return m.GUID }, wide: 4},
	{head: "JOINED BY", cell: func(m api.FabricMember) any { return m.By }, wide: 5},
}

// memberNames completes names of members.
func (a *app) memberNames() completion {
	return names(a, api.ListMembers, func(m api.FabricMember) string { return m.Name })
}

func memberRename(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "rename NAME NEW", Short: "give a member another name", Args: cobra.ExactArgs(2),
		ValidArgsFunction: a.memberNames(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := do(cmd.Context(), a, api.RenameMember, api.Named[api.MemberName]{Name: args[0],
				Value: api.MemberName{Name: args[1]}}); err != nil {
				return err
			}
			fmt.Fprintf(a.env.Out, "%s is called %s\n", printable(args[0]), printable(args[1]))
			return nil
		},
	}
}

func memberSet(a *app) *cobra.Command {
	var role string
	cmd := &cobra.Command{
		Use: "set NAME --role spine|leaf|any", Short: "set a member's role in the plan of trunks",
		Args: cobra.ExactArgs(1),
		Long: `Set the role of a member in the plan of trunks. A spine forwards packets of
others, before all members without this role, and is a voter, manager or
administrator as well: no other member forwards. A leaf forwards nothing, and
begins all of its trunks: others need not reach it. With "any" the plan
chooses. "weft fabric plan" shows the plan.`,
		ValidArgsFunction: a.memberNames(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if role == "" {
				return usage("weft member set "+args[0]+" --role spine", "cannot change the role: there is no --role")
			}
			if err := do(cmd.Context(), a, api.SetMember, api.Named[api.MemberShape]{Name: args[0],
				Value: api.MemberShape{Role: role}}); err != nil {
				return err
			}
			fmt.Fprintf(a.env.Out, "the role of %s in the plan of trunks is %s\n", printable(args[0]), role)
			return nil
		},
	}
	cmd.Flags().StringVar(&role, "role", "", "spine, leaf or any")
	cmd.RegisterFlagCompletionFunc("role", cobra.FixedCompletions([]string{"spine", "leaf", "any"},
		cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

var memberUserColumns = []column[api.MemberUser]{
	{head: "KIND", cell: func(u api.MemberUser) any { return u.Kind }},
	{head: "NAME", cell: func(u api.MemberUser) any { return u.Name }},
	{head: ">PID", cell: func(u api.MemberUser) any { return numberText(u.PID) }},
	{head: ">UID", cell: func(u api.MemberUser) any {
		if u.PID == 0 {
			return ""
		}
		return u.UID
	}},
}

func memberDrain(a *app) *cobra.Command {
	var force bool
	cmd := a.show(&cobra.Command{
		Use: "drain NAME", Short: "accept nothing new on a member, and name what uses it", Args: cobra.ExactArgs(1),
		Long: `Accept nothing new on a member: no program, guest, IP link, device or virtual
port. Name what uses it: programs, guests, IP links, and interfaces at virtual
Ethernet switches. These go on until they end or are removed, and the member is
drained when there are none; repeat the command to look again.

--force ends them all, and names what it ended. "weft member undrain" brings
back the IP links and interfaces that the configuration has; programs and guests
are started again by their owners. A node that starts on a drained host starts
without IP links and interfaces, as after --force.`,
		ValidArgsFunction: a.memberNames(),
	}, func(cmd *cobra.Command, args []string, print printer) error {
		m, err := call(cmd.Context(), a, api.DrainMember, api.Named[api.MemberDrain]{Name: args[0],
			Value: api.MemberDrain{Drain: true, Force: force}})
		if err != nil {
			return err
		}
		return print(m, func(w *screen) {
			if len(m.Ended) > 0 {
				fmt.Fprintf(w, "ended on %s: %s\n", printable(m.Name), plural(len(m.Ended), "user"))
				writeTable(w, "", memberUserColumns, m.Ended)
			}
			n := len(m.Users) + m.MoreUsers
			if n == 0 {
				fmt.Fprintf(w, "%s is %s: nothing uses it\n", printable(m.Name), m.State)
				return
			}
			fmt.Fprintf(w, "%s is %s: waiting for %s\n", printable(m.Name), m.State, plural(n, "user"))
			writeTable(w, "", memberUserColumns, m.Users)
			if m.MoreUsers > 0 {
				fmt.Fprintf(w, "… and %d more\n", m.MoreUsers)
			}
		})
	})
	cmd.Flags().BoolVar(&force, "force", false, "end what uses the member, and name it")
	return cmd
}

func memberUndrain(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "undrain NAME", Short: "end a drain", Args: cobra.ExactArgs(1), ValidArgsFunction: a.memberNames(),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := call(cmd.Context(), a, api.DrainMember, api.Named[api.MemberDrain]{Name: args[0]})
			if err != nil {
				return err
			}
			fmt.Fprintf(a.env.Out, "%s is %s\n", printable(m.Name), m.State)
			return nil
		},
	}
}

func memberRemove(a *app) *cobra.Command {
	var force bool
	cmd := a.show(&cobra.Command{
		Use: "remove NAME", Aliases: []string{"delete", "del", "rm"},
		Short: "remove a member: it is out at once, and the secrets that it had are replaced",
		Args:  cobra.ExactArgs(1), ValidArgsFunction: a.memberNames(),
	}, func(cmd *cobra.Command, args []string, print printer) error {
		r, err := call(cmd.Context(), a, api.RemoveMember, api.MemberRemoval{Name: args[0], Force: force})
		if err != nil {
			return err
		}
		return print(r, func(w *screen) {
			paragraph(w, "removed %s; replaced: %s", r.Name, strings.Join(r.Replaced, ", "))
			paragraph(w, "its ports stay in partitions and virtual switches, and it has them again if it joins again; "+
				"weft pkey list and weft vesw list show them, weft pkey delete and weft vesw port delete remove them")
		})
	})
	cmd.Flags().BoolVar(&force, "force", false, "also if the member is not drained, or gone")
	return cmd
}

func memberRotate(a *app) *cobra.Command {
	return a.show(&cobra.Command{
		Use:   "rotate",
		Short: "replace the secrets of the fabric: tokens, M_Key, CA and certificates; no member goes",
		Long: `Replace the secrets of the fabric, as operators do from time to time. All tokens
end and the M_Key changes at once. Another CA takes the place of the present
one: each member gets a certificate of it by itself, trunks and programs go on,
and the old CA ends when the last member has one. "weft status" has a notice
until then. Members that are away have a day; after it they join again.

The keys of members stay: a host gets others by "weft leave" and "weft join". If
a host is lost or in foreign hands, remove it: that takes effect at once.`,
		Args: cobra.NoArgs,
	}, func(cmd *cobra.Command, _ []string, print printer) error {
		r, err := call(cmd.Context(), a, api.RotateSecrets, api.None{})
		if err != nil {
			return err
		}
		return print(r, func(w *screen) {
			paragraph(w, "replaced: %s; being replaced: %s", strings.Join(r.Replaced, ", "),
				strings.Join(r.Begun, ", "))
		})
	})
}

func joinCommand(a *app) *cobra.Command {
	var s JoinSpec
	var noStart bool
	cmd := &cobra.Command{
		Use:   "join HOST --token TOKEN",
		Short: "make this host a member of a fabric, and start its node",
		Long: `Make this host a member of a fabric, and start its node in the background. "weft
token" on a member prints the command. HOST is a member's name or address, with
:PORT where its trunks have another port than 4792.

Before anything changes, the member checks the token, the versions, the clocks,
the MTU of the path, the name and the identity of this host. Where the command
was interrupted, repeat it: it goes on where it ended.

The node gets the settings that are given, as of "weft up", which lists them:
--roce-allow, --lanes and all others but those for nodes outside of a fabric.`,
		Example: `  weft join 10.0.0.1 --token TOKEN
  weft join 10.0.0.1 --token TOKEN --roce-allow 10.0.0.0/24
  weft join host1.example --name rack2-b1 --token - < token.txt`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.join(cmd.Context(), args[0], s, cmd.Flags(), noStart)
		},
	}
	f := cmd.Flags()
	addMemberSettings(f)
	f.StringVar(&s.Token, "token", "", "token, or - to read it from standard input")
	f.StringVar(&s.Name, "name", "", "name of this host in the fabric; its host name if not given")
	f.StringVar(&s.Roles, "role", "", "fewer roles than the token gives, such as leaf")
	f.StringSliceVar(&s.Addresses, "address", nil,
		"address or DNS name at which members reach this host (may be repeated)")
	f.BoolVar(&noStart, "no-start", false, "do not start the node")
	return cmd
}

func (a *app) join(ctx context.Context, host string, s JoinSpec, flags *pflag.FlagSet, noStart bool) error {
	const what = "cannot join the fabric"
	if s.Token == "" {
		return usage("weft token, on a member, prints the command", "%s: there is no token", what)
	}
	if s.Token == "-" {
		b := make([]byte, 256)
		n, err := os.Stdin.Read(b)
		if err != nil {
			return usage("weft join "+host+" --token TOKEN", "%s: no token on standard input: %v", what, err)
		}
		s.Token = strings.TrimSpace(string(b[:n]))
	}
	c, err := a.loadConfig(flags, "")
	if err != nil {
		return err
	}
	s.Dir, s.Host, s.Port = c.Dir, host, c.TrunkPort
	j, err := a.env.Join(ctx, s)
	var locked *rundir.LockedError
	if errors.As(err, &locked) {
		return &codeError{ExitOwned, &api.Error{What: what, Why: locked.Error(), Fix: "weft down" + dirFlag(a.dir,
			a.dir != "") +
			", then weft join again"}}
	}
	if err != nil {
		return err
	}
	w := a.out()
	paragraph(w, "%s is a member of fabric %s, with %s; roles: %s", j.Name, j.Fabric, plural(j.Members-1, "other"),
		j.Roles)
	for _, x := range j.Warnings {
		paragraph(w, "warning: %s", x)
	}
	if noStart {
		paragraph(w, "weft up starts the node")
		return nil
	}
	return a.detach(ctx, flags, c)
}

// addMemberSettings adds the settings of a node that can be a member. Help shows those that hosts differ in most: weft
// up lists all.
func addMemberSettings(f *pflag.FlagSet) {
	config.AddFlags(f, "dir", "fabric", "peer", "trunk-key-file", "store-listen", "idle-exit")
	f.VisitAll(func(s *pflag.Flag) { s.Hidden = s.Name != "roce-allow" && s.Name != "trunk-port" })
}

func leaveCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "leave",
		Short: "forget the fabric: remove this host's keys; its node does not run",
		Long: `Remove the keys and the certificate of this host. It is in no fabric then. On a
member, "weft member remove" takes it out of the records; do that first: while
they have it, this host cannot join again.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.loadConfig(nil, "")
			if err != nil {
				return err
			}
			err = a.env.Leave(c.Dir)
			var locked *rundir.LockedError
			if errors.As(err, &locked) {
				return &codeError{ExitOwned, &api.Error{What: "cannot leave the fabric", Why: locked.Error(),
					Fix: "weft down"}}
			}
			if err == nil {
				fmt.Fprintln(a.env.Out, "this host is in no fabric")
			}
			return err
		},
	}
}

// paragraph prints text, wrapped to the screen.
func paragraph(w *screen, format string, args ...any) {
	for _, part := range wrap(printable(fmt.Sprintf(format, args...)), w.width) {
		fmt.Fprintln(w, part)
	}
}

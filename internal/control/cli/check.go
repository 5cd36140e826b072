// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/control/doctor"
	"weft/internal/host/shimlib"
)

const portHelp = `A port is named by its GUID, by a device of the node, or by DEVICE@NODE with a
node's host name or GUID.`

func checkCommand(a *app) *cobra.Command {
	return onMaster(a.show(&cobra.Command{
		Use:   "check FROM TO",
		Short: "walk from one port to another and show where it breaks",
		Long: `Walk from one port to another, and back: whether both are active, which
partitions they share and as what members, the path by the tables of the
switches, the MTU of each link, the state and the loss of the trunks of the
master's node, the counters of the ports. The last line is the result: it works,
or where it breaks and the fix. The exit code is 1 where it breaks. The node of
the master answers from its last sweep and reads the counters of the ports; no
packet is sent on the path.

` + portHelp,
		Example: `  weft check weft_ib0 weft_ib0@otherhost
  weft check 0200:5e00:53ff:0003 0200:5e00:53ff:0103 -o json`,
		Args: cobra.ExactArgs(2),
	}, func(cmd *cobra.Command, args []string, print printer) error {
		c, err := call(cmd.Context(), a, api.CheckPair, api.PathQuery{From: args[0], To: args[1]})
		if err != nil {
			return err
		}
		if err := print(c, func(w *screen) { printCheck(w, c) }); err != nil {
			return err
		}
		if !c.Works {
			return &codeError{code: ExitFailed}
		}
		return nil
	}))
}

var checkHopColumns = []column[api.CheckHop]{
	{head: "LEAVES", cell: func(h api.CheckHop) any { return h.Out.Description }},
	{head: ">PORT", cell: func(h api.CheckHop) any { return h.Out.Port }},
	{head: "ARRIVES", cell: func(h api.CheckHop) any { return h.In.Description }},
	{head: ">PORT", cell: func(h api.CheckHop) any { return h.In.Port }},
	{head: "STATE", cell: func(h api.CheckHop) any { return h.State }},
	{head: ">MTU", cell: func(h api.CheckHop) any { return h.MTU }},
	{head: rateHead, cell: func(h api.CheckHop) any { return h.Gbps }, wide: 1},
}

func printCheck(w *screen, c api.PairCheck) {
	writeTable(w, "", checkHopColumns, c.Hops)
	if len(c.Hops) > 0 {
		fmt.Fprintln(w)
	}
	printFindings(w, c.Findings)
	fmt.Fprintln(w)
	level := api.LevelOK
	if !c.Works {
		level = api.LevelFail
	}
	text := c.Verdict
	if c.Fix != "" {
		text += ". fix: " + c.Fix
	}
	fields{w, 6}.line(level, "%s", text)
}

// printFindings prints a line for each finding, with its fix below.
func printFindings(w *screen, list []api.Finding) {
	for _, f := range list {
		fields{w, 6}.line(f.Level, "%s: %s", f.Check, f.What)
		if f.Fix != "" {
			fields{w, 6}.line("", "fix: %s", f.Fix)
		}
	}
}

func doctorCommand(a *app) *cobra.Command {
	return a.show(&cobra.Command{
		Use:   "doctor",
		Short: "run all checks of the host, the node and the fabric",
		Long: `Run all checks: of this host (directory, disk, ports, clock, limits, library,
membership), of the node that runs here, and, at the node of the master, of the
whole fabric (managers, ports, links, trunks, partitions, paths, store,
members). Each check is a line: ok, warn or fail, with its fix below.

It works without a node too. The exit code is 1 if a check failed.`,
		Args: cobra.NoArgs,
	}, func(cmd *cobra.Command, _ []string, print printer) error {
		list, err := a.examine(cmd.Context())
		if err != nil {
			return err
		}
		if err := print(list, func(w *screen) { printFindings(w, list) }); err != nil {
			return err
		}
		if slices.ContainsFunc(list, func(f api.Finding) bool { return f.Level == api.LevelFail }) {
			return &codeError{code: ExitFailed}
		}
		return nil
	})
}

// examine runs all checks.
func (a *app) examine(ctx context.Context) ([]api.Finding, error) {
	dir, named, err := a.nodeDir()
	if err != nil {
		return nil, err
	}
	h := doctor.Host{Dir: dir, UID: os.Geteuid(), Now: time.Now(), Built: builtAt(), RoCEPort: a.port("roce-port",
		config.RoCEPort), TrunkPort: a.port("trunk-port", config.TrunkPort), Bind: doctor.BindUDP,
		Free: doctor.FreeSpace, Files: doctor.OpenFiles,
		Library: func() (string, error) { return a.library(shimlib.Preload) }}
	s, err := get(ctx, a, api.GetStatus)
	var e *api.Error
	if err != nil && !errors.As(err, &e) {
		return nil, err
	}
	list := h.Local(err == nil || e.Code != api.CodeNoNode)
	switch {
	case err == nil:
		return append(list, a.examineNode(ctx, &s)...), nil
	case e.Code == api.CodeNoNode:
		return append(list, api.Finding{Level: api.LevelWarn, Check: "node", What: "no node runs in " + dir,
			Fix: "weft up" + dirFlag(dir, named)}), nil
	}
	fix := e.Fix
	if fix == "" {
		fix = "weft wait --for=ready" + dirFlag(dir, named)
	}
	return append(list, api.Finding{Level: api.LevelFail, Check: "node", What: e.Why, Fix: fix}), nil
}

// examineNode checks the node that runs, and the fabric as far as it knows it.
func (a *app) examineNode(ctx context.Context, s *api.Status) (list []api.Finding) {
	fabric, err := get(ctx, a, api.CheckFabric)
	checked := err == nil
	list = doctor.Node(s, ThisBuild().Version, checked)
	if s.Manager == "" {
		return list // it is in no subnet
	}
	if !checked {
		if m, err := get(ctx, a, api.GetManager); err == nil {
			fabric = doctor.Manager(&m)
			if m.State == "master" {
				fabric = append(fabric, api.Finding{Level: api.LevelWarn, Check: "manager",
					What: "the fabric cannot be checked yet: the first sweep has not ended", Fix: "weft wait --for=active"})
			}
		}
	}
	list = append(list, fabric...)
	if st, err := get(ctx, a, api.GetStore); err == nil {
		list = append(list, doctor.Store(&st)...)
	}
	members, err := get(ctx, a, api.ListMembers)
	if subnet, e := get(ctx, a, api.GetSubnet); err == nil && e == nil {
		list = append(list, doctor.Members(members, &subnet)...)
	}
	return list
}

// port is a UDP port of a node that would start now, by the environment.
func (a *app) port(setting string, usual int) int {
	if n, err := strconv.Atoi(a.env.Getenv(config.EnvName(setting))); err == nil {
		return n
	}
	return usual
}

// builtAt is the time of the revision that this program was made of, zero if it is not known.
func builtAt() (t time.Time) {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.time" {
				t, _ = time.Parse(time.RFC3339, strings.TrimSpace(s.Value))
			}
		}
	}
	return t
}

// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft/internal/control/api"
)

// conditions are those of weft wait --for, with their descriptions.
var conditions = []struct{ name, help string }{
	{"ready", "programs can use the node"},
	{"active", "every InfiniBand and Ethernet port is active and every trunk up"},
	{"trunks", "the node has trunks, and each is up and active"},
	{"manager", "a master of the subnet is known"},
	{"nodes=N", "the subnet has at least N nodes"},
}

// condition is one condition of weft wait. check returns why it does not hold yet and the fix, empty if it holds.
type condition struct {
	name  string
	check func(ctx context.Context, a *app, s *api.Status) (why, fix string)
}

// parseConditions reads the value of weft wait --for.
func parseConditions(text string) (list []condition, err error) {
	var names []string
	for _, c := range conditions {
		names = append(names, c.name)
	}
	bad := func(word string) error {
		return usage("weft wait --for=active", "--for: %q is none of %s", word, strings.Join(names, ", "))
	}
	for _, word := range strings.Split(text, ",") {
		c := condition{name: word}
		switch name, value, has := strings.Cut(word, "="); {
		case has && name == "nodes":
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 {
				return nil, usage("weft wait --for=nodes=3", "--for: nodes needs a number of 1 or more, not %q", value)
			}
			c.check = func(ctx context.Context, a *app, s *api.Status) (string, string) {
				return lacksNodes(ctx, a, s, n)
			}
		case has:
			return nil, bad(word)
		case name == "ready":
			c.check = func(context.Context, *app, *api.Status) (string, string) { return "", "" } // every check waits for it
		case name == "active":
			c.check = func(_ context.Context, _ *app, s *api.Status) (string, string) { return inactive(s) }
		case name == "trunks":
			c.check = func(_ context.Context, _ *app, s *api.Status) (string, string) { return trunksDown(s) }
		case name == "manager":
			c.check = lacksManager
		case name == "nodes":
			return nil, usage("weft wait --for=nodes=3", "--for: nodes needs a number, as in nodes=3")
		default:
			return nil, bad(word)
		}
		list = append(list, c)
	}
	return list, nil
}

func waitCommand(a *app) *cobra.Command {
	var what string
	var timeout time.Duration
	help := `Wait until all of these conditions hold:
`
	for _, c := range conditions {
		help += fmt.Sprintf("  %-8s  %s\n", c.name, c.help)
	}
	help += `
Ports of devices that were disabled do not count. The manager counts the nodes
of its subnet; a node that is not the master counts itself and the nodes at the
other ends of its trunks.

The exit code is 1 if a condition does not hold in time, 3 if no node answers.`
	cmd := &cobra.Command{
		Use:   "wait",
		Short: "wait until ports, trunks, a manager or a number of nodes are there",
		Long:  help,
		Example: `  weft wait --for=active
  weft wait --for=nodes=3,trunks,active --timeout 1m`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := parseConditions(what)
			if err != nil {
				return err
			}
			return a.waitFor(cmd.Context(), what, list, timeout)
		},
	}
	f := cmd.Flags()
	f.StringVar(&what, "for", "active", "conditions, with commas between them: ready, active, trunks, manager, nodes=N")
	f.DurationVar(&timeout, "timeout", 30*time.Second, "time to wait")
	return cmd
}

// unmet is the first condition that does not hold.
type unmet struct{ name, why, fix string }

// waitFor waits until all conditions hold.
func (a *app) waitFor(ctx context.Context, what string, list []condition, timeout time.Duration) error {
	dir, named, err := a.nodeDir()
	if err != nil {
		return err
	}
	c, err := a.client()
	if err != nil {
		return err
	}
	waiting, stop := context.WithTimeout(ctx, timeout)
	defer stop()
	var first *unmet
	last, err := await(waiting, c, timeout, func(s api.Status) bool {
		if !s.Ready {
			return false
		}
		for _, k := range list {
			if why, fix := k.check(waiting, a, &s); why != "" {
				if waiting.Err() == nil || first == nil { // what a call that was cut off returns is no reason
					first = &unmet{k.name, why, fix}
				}
				return false
			}
		}
		first = nil
		return true
	})
	if err == nil {
		if off := disabled(last); slices.ContainsFunc(list, func(k condition) bool { return k.name == "active" }) &&
			len(off) > 0 {
			fmt.Fprintf(a.env.Out, "weft: did not wait for %s: disabled on purpose (weft status)\n", strings.Join(off, ", "))
		}
		return nil
	}
	if first != nil && last.Ready {
		e := &api.Error{Code: api.CodeConflict, What: fmt.Sprintf("%s does not hold after %v", first.name, timeout),
			Why: first.why, Fix: first.fix}
		if e.Fix == "" {
			e.Fix = "weft status" + dirFlag(dir, named)
		}
		return &codeError{ExitFailed, e}
	}
	e := &api.Error{Code: api.CodeNotReady, What: fmt.Sprintf("%s does not hold after %v", what, timeout),
		Why: err.Error(), Fix: "weft status" + dirFlag(dir, named)}
	var ae *api.Error
	switch {
	case refused(err):
		return err
	case errors.As(err, &ae) && ae.Code == api.CodeNoNode:
		e.Why, e.Fix = "no node runs in "+dir, "weft up"+dirFlag(dir, named)
	case errors.As(err, &ae):
		e.Why = ae.Why
		if ae.Fix != "" {
			e.Fix = ae.Fix
		}
	}
	return e
}

func isReady(s api.Status) bool { return s.Ready }

func isInactive(d api.DeviceSummary) bool { return d.Enabled && d.PortState != "ACTIVE" }

func isDown(t api.Trunk) bool { return !t.Up }

// isIdle reports whether a trunk is up, and the port of the switch behind it is not active yet. A node of an earlier
// version does not report that state.
func isIdle(t api.Trunk) bool { return t.Up && t.State != "" && t.State != "ACTIVE" }

// downTrunks names the trunks that are down, with the fix; empty if there is none.
func downTrunks(s *api.Status) (why, fix string) {
	var peers []string
	for _, t := range s.Trunks {
		if isDown(t) {
			peers = append(peers, t.Peer)
		}
	}
	if len(peers) == 0 {
		return "", ""
	}
	return "the trunk to " + strings.Join(peers, " and ") + " is down",
		"weft trunk, here and on that host"
}

// inactive names what keeps a node from being active, with its fix; an empty fix is that of weft status.
func inactive(s *api.Status) (why, fix string) {
	if why, fix = downTrunks(s); why != "" {
		return why, fix
	}
	var ports []string
	for _, d := range s.Devices {
		if isInactive(d) {
			ports = append(ports, d.Name)
		}
	}
	switch {
	case len(ports) > 0:
		return "the port of " + strings.Join(ports, " and ") + " is not active", ""
	case len(s.Devices) == 0:
		return "it has no device", ""
	}
	return "", ""
}

// trunksDown names what is wrong with the trunks of a node.
func trunksDown(s *api.Status) (why, fix string) {
	if len(s.Trunks) == 0 {
		if s.Member != "" {
			return "the node has no trunk", "weft member list; weft fabric plan"
		}
		return "the node has no trunk", "weft join, or for nodes in no fabric weft up --peer ADDRESS"
	}
	if why, fix = downTrunks(s); why != "" {
		return why, fix
	}
	for _, t := range s.Trunks {
		if isIdle(t) {
			return fmt.Sprintf("the trunk to %s is up, and its port is %s: no manager has made it active", t.Peer, t.State),
				"weft sm"
		}
	}
	return "", ""
}

// lacksManager reports why no master is known.
func lacksManager(ctx context.Context, a *app, s *api.Status) (why, fix string) {
	if s.Manager == "" {
		return "the node is in no subnet", "weft up --fabric"
	}
	m, err := get(ctx, a, api.GetManager)
	switch {
	case err != nil:
		return reason(err)
	case m.Master.GUID != "" || m.Master.Name != "":
		return "", ""
	case m.State == "failed":
		return "the manager of this node failed: " + m.Store.Down, "weft store status"
	case m.State != "off" && m.State != "external":
		return "this node has found no master", "weft sm; weft trunk"
	}
	// A node without a manager knows the master by the LID that it gave the ports.
	devices, err := get(ctx, a, api.ListDevices)
	if err != nil {
		return reason(err)
	}
	for _, d := range devices {
		for _, p := range d.Ports {
			if p.SMLID != 0 && p.State == "ACTIVE" {
				return "", ""
			}
		}
	}
	return "no manager has made a port of this node active (--sm " + m.State + ")",
		"weft up --sm auto on a node of the subnet, or weft run -- opensm"
}

// lacksNodes reports why the subnet has fewer than n nodes.
func lacksNodes(ctx context.Context, a *app, s *api.Status, n int) (why, fix string) {
	if s.Manager == "" {
		return "the node is in no subnet", "weft up --fabric"
	}
	subnet, err := get(ctx, a, api.GetSubnet)
	count, who := 0, "the manager counts"
	var e *api.Error
	switch {
	case err == nil:
		for _, x := range subnet.Nodes {
			if x.Type == "switch" {
				count++
			}
		}
	case errors.As(err, &e) && e.Code == api.CodeNotMaster:
		if why, fix := lacksManager(ctx, a, s); why != "" {
			return why, fix
		}
		who = "this node counts itself and those behind its trunks:"
		peers := map[string]bool{}
		for _, t := range s.Trunks {
			if t.Up && !isIdle(t) && t.Node != "" {
				peers[t.Node] = true
			}
		}
		count = 1 + len(peers)
	default:
		return reason(err)
	}
	if count >= n {
		return "", ""
	}
	return fmt.Sprintf("%s %s, not %d", who, plural(count, "node"), n),
		"weft trunk, here and on the hosts that are missing"
}

// reason returns the parts of an error of the node.
func reason(err error) (why, fix string) {
	var e *api.Error
	if errors.As(err, &e) {
		return e.Why, e.Fix
	}
	return err.Error(), ""
}

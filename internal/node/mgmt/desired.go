// SPDX-License-Identifier: Apache-2.0

package mgmt

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"weft/internal/control/api"
	"weft/internal/control/fabricfile"
	"weft/internal/mgmt/manager"
	"weft/internal/mgmt/sm"
	"weft/internal/mgmt/sm/em"
	"weft/internal/mgmt/sm/sa"
	"weft/internal/mgmt/sm/topo"
	"weft/internal/node/describe"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/problem"
)

// desired reads the configuration from the store.
func (n *Network) desired(ctx context.Context, command string) (d manager.Desired, err error) {
	if err := n.editable(ctx, command); err != nil {
		return d, err
	}
	ctx, stop := context.WithTimeout(ctx, StoreWait)
	defer stop()
	if d, err = manager.Load(ctx, reads(n.store, n.storeMember)); err != nil {
		err = storeError(err)
	}
	return d, err
}

// configuration is the operations on the configuration as a whole.
type configuration struct{ n *Network }

func (c configuration) exportDesired(ctx context.Context) (api.Desired, error) {
	d, err := c.n.desired(ctx, "weft export")
	if err != nil {
		return api.Desired{}, err
	}
	return describeDesired(&d), nil
}

func (c configuration) compareDesired(ctx context.Context, want api.Desired) (v api.Comparison, err error) {
	d, err := c.n.desired(ctx, "weft diff")
	if err != nil {
		return v, err
	}
	done, err := c.n.comparisons.take(ctx)
	if err != nil {
		return v, err
	}
	defer done()
	t := c.n.topologyIfKnown()
	before := d.Clone()
	if err := c.desire(ctx, &want, &d, t); err != nil {
		return v, err
	}
	if err := c.n.changeError("weft export", d.Validate()); err != nil {
		return v, err
	}
	lost, err := lostBy(ctx, &before, &d, t)
	return api.Comparison{Changes: compare(&before, &d, t), Lost: describeLost(lost, t)}, err
}

func (c configuration) applyDesired(ctx context.Context, want api.Desired) (v api.Comparison, err error) {
	if err := c.n.editable(ctx, "weft apply"); err != nil {
		return v, err
	}
	t := c.n.topologyIfKnown()
	err = c.n.change(ctx, "apply", "weft export", func(d *manager.Desired) error {
		before := d.Clone()
		if err := c.desire(ctx, &want, d, t); err != nil {
			return err
		}
		lost, err := lostBy(ctx, &before, d, t)
		v = api.Comparison{Changes: compare(&before, d, t), Lost: describeLost(lost, t)}
		return err
	})
	if err == nil {
		c.n.cfg.Log.Info("configuration applied", "changes", len(v.Changes))
	}
	return v, err
}

func (c configuration) history(ctx context.Context, since api.Since) (list []api.HistoryEntry, err error) {
	if err := c.n.editable(ctx, "weft history"); err != nil {
		return nil, err
	}
	ctx, stop := context.WithTimeout(ctx, StoreWait)
	defer stop()
	all, err := manager.History(ctx, reads(c.n.store, c.n.storeMember), since.Time())
	if err != nil {
		return nil, storeError(err)
	}
	for _, x := range all {
		list = append(list, api.HistoryEntry{Number: x.Number, At: x.At, Member: x.Member, UID: x.UID, User: x.User,
			Op: x.Op, Text: x.Text})
	}
	return list, nil
}

// compare lists the differences between two configurations, with the names of ports that t has.
func compare(is, want *manager.Desired, t *topo.Subnet) []api.DesiredChange {
	return fabricfile.Compare(describeDesired(is), describeDesired(want), func(port string) string {
		g, ok := describe.ParseGUID(port)
		if !ok {
			return ""
		}
		return portName(t, g)
	})
}

// describeDesired describes a configuration. What it returns is as much as desire needs to make it again.
func describeDesired(d *manager.Desired) api.Desired {
	s := &d.Subnet
	v := api.Desired{Subnet: &api.DesiredSubnet{Routing: s.Engine, Protect: int(s.MKeyProtect),
		LeaseS: int(s.MKeyLease)},
		Partitions: []api.DesiredPartition{}, VESWs: []api.DesiredVESW{}, Groups: []api.DesiredGroup{},
		Ethernet: &api.DesiredEthernet{FabricID: int(d.Ethernet.FabricID), ByteIDs: d.Ethernet.ByteIDs}}
	for _, g := range s.Roots {
		v.Subnet.Roots = append(v.Subnet.Roots, g.String())
	}
	for i := range s.Partitions {
		p := &s.Partitions[i]
		x := api.DesiredPartition{Name: p.Name, PKey: describe.PKey(p.PKey | 0x8000), Apart: p.Apart}
		if p.All != sm.NotMember {
			x.Members = append(x.Members, memberText(api.AllPorts, p.All))
		}
		for _, m := range p.Members {
			x.Members = append(x.Members, memberText(m.PortGUID.String(), m.As))
		}
		v.Partitions = append(v.Partitions, x)
	}
	for i := range d.Ethernet.VESWs {
		w := &d.Ethernet.VESWs[i]
		x := api.DesiredVESW{Name: w.Name, ID: int(w.ID), MTU: int(w.MTU), Flood: w.Flood, NoUserMACs: w.NoUserMACs,
			MaxMACs: int(w.MaxMACs), SL: int(w.SL)}
		if w.PKey != 0 {
			x.PKey = describe.PKey(w.PKey | 0x8000)
		}
		if w.PCP != nil {
			for _, sl := range w.PCP {
				x.PCP = append(x.PCP, int(sl))
			}
		}
		for _, m := range w.Members {
			index := int(m.Index)
			x.Ports = append(x.Ports, api.DesiredVESWPort{Port: m.Port.String(), VPort: &index, Number: int(m.Num),
				Gateway: m.Gateway})
		}
		v.VESWs = append(v.VESWs, x)
	}
	for i := range d.Groups {
		g := &d.Groups[i]
		x := api.DesiredGroup{MGID: g.MGID.String(), PKey: describe.PKey(g.PKey | 0x8000), MTU: describe.MTU(g.MTU)}
		if g.QKey != 0 {
			x.QKey = fmt.Sprintf("0x%08x", uint32(g.QKey))
		}
		for _, m := range g.Members {
			x.Members = append(x.Members, m.PortGUID.String())
		}
		v.Groups = append(v.Groups, x)
	}
	return v
}

func memberText(port string, as sm.Membership) string {
	if as == sm.Full {
		return port
	}
	return port + "=" + membershipText(as)
}

// desire makes d what want states. On an error d is undefined. The line that the error names is that of the file.
func (c configuration) desire(ctx context.Context, want *api.Desired, d *manager.Desired, t *topo.Subnet) error {
	if err := bounded(want); err != nil {
		return err
	}
	s := desirer{n: c.n, ctx: ctx, named: c.n.portNames(ctx, t)}
	if w := want.Subnet; w != nil {
		if err := s.subnet(w, &d.Subnet); err != nil {
			return err
		}
	}
	if want.Partitions != nil {
		if err := s.partitions(want.Partitions, &d.Subnet); err != nil {
			return err
		}
	}
	if w := want.Ethernet; w != nil {
		id, err := narrow[uint16](w.FabricID, "fabric_id")
		if err != nil || id > em.MaxFabricID {
			return wrongLine(w.Line, "fabric_id %d: want 0 to %d", w.FabricID, em.MaxFabricID)
		}
		d.Ethernet.FabricID, d.Ethernet.ByteIDs = id, w.ByteIDs
	}
	if want.VESWs != nil {
		if err := s.vesws(want.VESWs, &d.Ethernet); err != nil {
			return err
		}
	}
	if want.Groups != nil {
		if err := s.groups(want.Groups, d); err != nil {
			return err
		}
	}
	return s.separate(want, d)
}

// wrongLine is an error with the line of the file, 0 where there is none.
func wrongLine(line int, format string, args ...any) error {
	why := fmt.Sprintf(format, args...)
	if line != 0 {
		why = fmt.Sprintf("line %d: %s", line, why)
	}
	return describe.Invalid("weft export prints the form", "%s", why)
}

// desirer makes a configuration what a request states. It is for one request, and ends its work with ctx.
type desirer struct {
	n     *Network
	ctx   context.Context
	named func(name string) (ib.GUID, error)
}

func (s *desirer) port(line int, name string) (ib.GUID, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	g, err := s.named(name)
	if err != nil {
		return 0, wrongLine(line, "%s", problem.Of("", err).Why)
	}
	return g, nil
}

// key reads a P_Key of a file, which has 0x before it: digits alone could be decimal.
func (s *desirer) key(line int, text string) (ib.PKey, error) {
	key, err := describe.ParsePKey(text)
	switch {
	case err != nil:
		return 0, wrongLine(line, "%v", err)
	case !strings.HasPrefix(text, "0x"):
		return 0, wrongLine(line, "the P_Key %s may be decimal or hexadecimal: write 0x before it", text)
	}
	return key, nil
}

func (s *desirer) subnet(w *api.DesiredSubnet, i *sm.Intent) error {
	i.Engine, i.Roots = w.Routing, nil
	for _, r := range w.Roots {
		g, ok := describe.ParseGUID(r)
		if !ok {
			return wrongLine(w.Line, "a root is the GUID of a switch, not %q", r)
		}
		i.Roots = append(i.Roots, g)
	}
	if len(w.Roots) > 0 && !slices.Contains(strings.Split(w.Routing, ","), "updn") {
		return wrongLine(w.Line, "roots are for the engine updn, which the routing %q does not name", w.Routing)
	}
	if w.Protect < 0 || w.Protect > 3 {
		return wrongLine(w.Line, "m_key_protect %d: want 0 to 3", w.Protect)
	}
	if w.LeaseS != 0 && (w.LeaseS < api.MinMKeyLease || w.LeaseS > api.MaxMKeyLease) {
		return wrongLine(w.Line, "m_key_lease_s %d: want %d to %d", w.LeaseS, api.MinMKeyLease, api.MaxMKeyLease)
	}
	i.MKeyProtect, i.MKeyLease = uint8(w.Protect), uint16(w.LeaseS)
	alone := sm.Intent{Engine: i.Engine, Roots: i.Roots}
	if err := alone.Validate(); err != nil {
		return wrongLine(w.Line, "%v", err)
	}
	return nil
}

func (s *desirer) partitions(want []api.DesiredPartition, i *sm.Intent) error {
	i.Partitions = nil
	at := map[ib.PKey]int{}
	for _, w := range want {
		key, err := s.key(w.Line, w.PKey)
		if err != nil {
			return err
		}
		if before, twice := at[key]; twice {
			return wrongLine(w.Line, "partition %s is there twice: also in line %d", describe.PKey(key), before)
		}
		at[key] = w.Line
		p := sm.Partition{Name: cmp.Or(w.Name, describe.PKey(key)), PKey: key, Apart: w.Apart}
		if err := s.members(&w, &p); err != nil {
			return err
		}
		if err := (&sm.Intent{Partitions: []sm.Partition{p}}).Validate(); err != nil {
			return wrongLine(w.Line, "%v", err)
		}
		i.Partitions = append(i.Partitions, p)
	}
	return nil
}

func (s *desirer) members(w *api.DesiredPartition, p *sm.Partition) error {
	seen := make(map[ib.GUID]bool, len(w.Members))
	for _, text := range w.Members {
		port, as, _ := strings.Cut(text, "=")
		ms := sm.Full
		switch as {
		case "", api.MemberFull:
		case api.MemberLimited:
			ms = sm.Limited
		default:
			return wrongLine(w.Line, "partition %s: a member is full or limited, not %q", p.Name, as)
		}
		if port == api.AllPorts {
			if p.All != sm.NotMember {
				return wrongLine(w.Line, "partition %s: %s is a member twice", p.Name, api.AllPorts)
			}
			p.All = ms
			continue
		}
		guid, err := s.port(w.Line, port)
		if err != nil {
			return err
		}
		if seen[guid] {
			return wrongLine(w.Line, "partition %s: port %s is a member twice", p.Name, port)
		}
		seen[guid] = true
		p.Members = append(p.Members, sm.Member{PortGUID: guid, As: ms})
	}
	return nil
}

// groups makes the groups those of a request.
func (s *desirer) groups(want []api.DesiredGroup, d *manager.Desired) error {
	was, seen := map[ib.GID]sa.Group{}, map[ib.GID]bool{}
	for _, g := range d.Groups {
		was[g.MGID] = g
	}
	d.Groups = nil
	for _, w := range want {
		if err := s.ctx.Err(); err != nil {
			return err
		}
		j := api.GroupJoin{MGID: w.MGID, MTU: w.MTU, Members: w.Members}
		if w.PKey != "" {
			key, err := s.key(w.Line, w.PKey)
			if err != nil {
				return err
			}
			j.PKey = describe.PKey(key)
		}
		if w.QKey != "" {
			k, err := strconv.ParseUint(w.QKey, 0, 32)
			if err != nil || !strings.HasPrefix(w.QKey, "0x") {
				return wrongLine(w.Line, "a Q_Key is a number of 32 bits with 0x before it, not %q", w.QKey)
			}
			j.QKey = uint32(k)
		}
		g, err := groupOf(&j, s.named)
		if err != nil {
			return wrongLine(w.Line, "%s", problem.Of("", err).Why)
		}
		members := make(map[ib.GUID]bool, len(g.Members))
		for _, m := range g.Members {
			if members[m.PortGUID] {
				return wrongLine(w.Line, "group %s: port %v is a member twice", w.MGID, m.PortGUID)
			}
			members[m.PortGUID] = true
		}
		if seen[g.MGID] {
			return wrongLine(w.Line, "group %s is there twice", w.MGID)
		}
		seen[g.MGID] = true
		if old, kept := was[g.MGID]; kept { // with what a request has no word for
			old.PKey, old.QKey, old.MTU, old.Members = g.PKey, g.QKey, g.MTU, g.Members
			g = old
		}
		for k := range g.Members {
			g.Members[k].JoinState = mad.JoinFull
		}
		d.Groups = append(d.Groups, g)
	}
	return nil
}

// separate refuses a partition that a virtual Ethernet switch has for itself.
func (s *desirer) separate(want *api.Desired, d *manager.Desired) error {
	there := make(map[ib.PKey]bool, len(d.Subnet.Partitions))
	for _, p := range d.Subnet.Partitions {
		there[p.PKey|0x8000] = true
	}
	for i := range d.Ethernet.VESWs {
		v := &d.Ethernet.VESWs[i]
		if !v.OwnPartition() || !there[v.Key()] {
			continue
		}
		line := 0
		for _, w := range want.Partitions {
			if k, err := describe.ParsePKey(w.PKey); err == nil && k == v.Key() {
				line = w.Line
			}
		}
		return wrongLine(line, "partition %s is the one that the virtual Ethernet switch %s has for itself",
			describe.PKey(v.Key()), v.Name)
	}
	return nil
}

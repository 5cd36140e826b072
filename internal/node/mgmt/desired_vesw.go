// SPDX-License-Identifier: Apache-2.0

package mgmt

import (
	"cmp"
	"fmt"
	"strings"

	"weft/internal/control/api"
	"weft/internal/mgmt/sm/em"
	"weft/internal/proto/ib"
)

// vesws makes the virtual Ethernet switches those of a request. What it does not state, an identifier and the numbers
// of ports, stays as it is, or is chosen.
func (s *desirer) vesws(want []api.DesiredVESW, i *em.Intent) error {
	was := *i
	i.VESWs = nil
	lines := map[string]int{}
	for k := range want {
		w := &want[k]
		if before, twice := lines[w.Name]; twice {
			return wrongLine(w.Line, "vesw %s is there twice: also in line %d", w.Name, before)
		}
		lines[w.Name] = w.Line
		v, err := s.vesw(w, &was)
		if err != nil {
			return err
		}
		i.VESWs = append(i.VESWs, v)
	}
	free := i.FreeIDs()
	for k := range i.VESWs {
		v := &i.VESWs[k]
		if v.ID == 0 {
			var err error
			if v.ID, err = free.Next(); err != nil {
				return wrongLine(want[k].Line, "vesw %s: %v", v.Name, err)
			}
			i.LastID = v.ID
		}
		if err := alone(i, v); err != nil {
			return wrongLine(want[k].Line, "vesw %v", err)
		}
	}
	return s.choosePorts(want, i, &was)
}

// alone returns the faults of a switch by itself, with its name.
func alone(i *em.Intent, v *em.VESW) error {
	x := em.Intent{ByteIDs: i.ByteIDs, VESWs: []em.VESW{*v}}
	err := x.Validate()
	if err != nil && !strings.HasPrefix(err.Error(), v.Name+": ") {
		err = fmt.Errorf("%s: %w", v.Name, err)
	}
	return err
}

// vesw makes a switch of a request, without its ports.
func (s *desirer) vesw(w *api.DesiredVESW, was *em.Intent) (v em.VESW, err error) {
	v = em.VESW{Name: w.Name, Flood: w.Flood, NoUserMACs: w.NoUserMACs}
	var pcp []uint8
	for _, sl := range w.PCP {
		x, err := narrow[uint8](sl, "pcp")
		if err != nil {
			return v, wrongLine(w.Line, "vesw %s: %v", w.Name, err)
		}
		pcp = append(pcp, x)
	}
	if pcp != nil {
		if len(pcp) != 8 {
			return v, wrongLine(w.Line, "vesw %s: %d service levels by priority: want 8", w.Name, len(pcp))
		}
		v.PCP = (*[8]uint8)(pcp)
	}
	if w.PKey != "" {
		if v.PKey, err = s.key(w.Line, w.PKey); err != nil {
			return v, err
		}
	}
	for _, x := range []struct {
		to   *uint16
		from int
		what string
	}{{&v.ID, w.ID, "id"}, {&v.MTU, w.MTU, "mtu"}, {&v.MaxMACs, w.MaxMACs, "max_macs"}} {
		if *x.to, err = narrow[uint16](x.from, x.what); err != nil {
			return v, wrongLine(w.Line, "vesw %s: %v", w.Name, err)
		}
	}
	if v.SL, err = narrow[uint8](w.SL, "sl"); err != nil {
		return v, wrongLine(w.Line, "vesw %s: %v", w.Name, err)
	}
	if old := was.Find(w.Name); old != nil && v.ID == 0 {
		v.ID = old.ID
	}
	return v, nil
}

// vport is a vport of a port of the fabric.
type vport struct {
	port  ib.GUID
	index uint8
}

// chooser gives ports of virtual Ethernet switches what a request leaves open. What the request states is taken before
// anything is chosen, so that the lowest that is free only grows.
type chooser struct {
	vports  map[vport]string    // the switch of each
	numbers []map[uint32]bool   // by the place of the switch
	low     map[ib.GUID]int     // no vport of the port below it is free
	lowest  map[int]uint32      // the same of the numbers of a switch
	open    map[[2]int]struct{} // places of a switch and of its member: the vport is to be chosen
}

// choosePorts gives the switches their ports, in the order of the request: each with its vport and number, or those
// that it had, or what is free.
func (s *desirer) choosePorts(want []api.DesiredVESW, i, was *em.Intent) error {
	c := chooser{vports: map[vport]string{}, low: map[ib.GUID]int{}, lowest: map[int]uint32{},
		open: map[[2]int]struct{}{}}
	for k := range want {
		v := &i.VESWs[k]
		old := map[ib.GUID]*em.Member{}
		if o := was.Find(v.Name); o != nil {
			for j := range o.Members {
				old[o.Members[j].Port] = &o.Members[j]
			}
		}
		c.numbers = append(c.numbers, map[uint32]bool{})
		seen := map[ib.GUID]bool{}
		for _, p := range want[k].Ports {
			line := cmp.Or(p.Line, want[k].Line)
			guid, err := s.port(line, p.Port)
			if err != nil {
				return err
			}
			if seen[guid] {
				return wrongLine(line, "vesw %s: port %s is there twice", v.Name, p.Port)
			}
			seen[guid] = true
			if err := c.state(k, v, &p, line, guid, old[guid]); err != nil {
				return err
			}
		}
	}
	for k := range i.VESWs {
		v := &i.VESWs[k]
		if err := c.choose(k, v); err != nil {
			return wrongLine(want[k].Line, "vesw %s: %v", v.Name, err)
		}
		if err := alone(i, v); err != nil {
			return wrongLine(want[k].Line, "vesw %v", err)
		}
	}
	return nil
}

// state adds a port to the switch at place k, with the vport and the number that the request states, or that it had as
// old; nil: it was none.
func (c *chooser) state(k int, v *em.VESW, p *api.DesiredVESWPort, line int, guid ib.GUID, old *em.Member) error {
	index, m := -1, em.Member{Port: guid, Num: uint32(max(p.Number, 0)), Gateway: p.Gateway}
	if old != nil {
		index, m.Num = int(old.Index), cmp.Or(m.Num, old.Num)
	}
	if p.VPort != nil {
		index = *p.VPort
	}
	if index > em.MaxIndex || p.VPort != nil && *p.VPort < 0 || p.Number < 0 || p.Number > em.MaxMembers {
		return wrongLine(line, "vesw %s: port %s: vport 0 to %d, number 1 to %d", v.Name, p.Port, em.MaxIndex,
			em.MaxMembers)
	}
	if index < 0 {
		c.open[[2]int{k, len(v.Members)}] = struct{}{}
	} else {
		m.Index = uint8(index)
		if other, taken := c.vports[vport{guid, m.Index}]; taken {
			return wrongLine(line, "vesw %s: vport %d of port %s is in %s", v.Name, index, p.Port, other)
		}
		c.vports[vport{guid, m.Index}] = v.Name
	}
	if m.Num != 0 {
		if c.numbers[k][m.Num] {
			return wrongLine(line, "vesw %s: port %s: the number %d is another's", v.Name, p.Port, m.Num)
		}
		c.numbers[k][m.Num] = true
	}
	v.Members = append(v.Members, m)
	return nil
}

// choose completes the members of the switch at place k.
func (c *chooser) choose(k int, v *em.VESW) error {
	for j := range v.Members {
		m := &v.Members[j]
		if _, open := c.open[[2]int{k, j}]; open {
			index := c.low[m.Port]
			for ; index <= em.MaxIndex && c.vports[vport{m.Port, uint8(index)}] != ""; index++ {
			}
			if c.low[m.Port] = index; index > em.MaxIndex {
				return fmt.Errorf("port %v: every vport of the port is taken: %w", m.Port, em.ErrNoRoom)
			}
			m.Index = uint8(index)
			c.vports[vport{m.Port, m.Index}] = v.Name
		}
		if m.Num == 0 {
			n := max(c.lowest[k], 1)
			for ; c.numbers[k][n]; n++ {
			}
			m.Num, c.lowest[k] = n, n
			c.numbers[k][n] = true
		}
	}
	return nil
}

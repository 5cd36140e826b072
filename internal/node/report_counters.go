// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"strconv"

	"weft/internal/control/api"
	"weft/internal/fabric/link/roceframe"
	"weft/internal/node/control"
	"weft/internal/node/session"
	"weft/internal/proto/counters"
	"weft/internal/proto/ib"
)

// counters lists all counters of the node.
func (r *reporter) counters(ctx context.Context) (list []api.Counter, err error) {
	add := func(scope, instance, name string, v uint64) {
		list = append(list, api.Counter{Scope: scope, Instance: instance, Name: name, Value: v})
	}
	add(api.ScopeNode, "", "sessions", uint64(r.sessions.Connected()))
	for why, c := range r.table.ends() {
		add(api.ScopeNode, "", "session_end_"+why, c)
	}
	for why, c := range r.table.refusals() {
		add(api.ScopeNode, "", "refused_"+why, c)
	}
	for _, f := range r.table.all() {
		if f.a.Port().Link != ib.LinkInfiniBand {
			continue // the counters of its link are those of the port
		}
		c, err := r.lanes.PortCounters(f.a.Number())
		if err != nil {
			return nil, err
		}
		fields(add, api.ScopePort, f.a.Name, &c)
	}
	fields(add, api.ScopeNode, "", r.sessions.Stats())
	fields(add, api.ScopeNode, "", r.sessions.Guard().Counters())
	if err := r.cards.Counters(add); err != nil {
		return nil, err
	}
	r.connections.Counters(add)
	for i, l := range r.lanes.All() {
		err = l.Query(func() {
			if i == 0 {
				c := r.lanes.Multicast().Counters()
				fields(add, api.ScopeMcast, "", &c.Counters)
				add(api.ScopeMcast, "", "payloads", c.Payloads)
				add(api.ScopeMcast, "", "high_queue", c.HighQueue)
			}
			fields(add, api.ScopeLane, strconv.Itoa(i), &l.HCA.Stats)
			fields(add, api.ScopeLane, strconv.Itoa(i), l.Stats())
			c := l.Net.RoCE.Counters()
			c.Each(func(name string, v uint64) { add(api.ScopeLink, "roce"+strconv.Itoa(i), name, v) })
			l.Net.EachEthernet(func(function uint16, port *roceframe.Link) {
				c := port.Counters()
				c.Each(func(name string, v uint64) {
					add(api.ScopeLink, control.DeviceName(r.functions, function), name, v)
				})
			})
		})
		if err != nil {
			return nil, err
		}
	}
	if r.subnet != nil {
		if err := r.subnet.Counters(add); err != nil {
			return nil, err
		}
	}
	r.network.Counters(add)
	r.member.Counters(add)
	more, err := r.ip.Counters(ctx, "")
	if err != nil {
		return nil, err
	}
	list = append(list, more...)
	more, err = r.vesw.Counters(ctx, "")
	if err != nil {
		return nil, err
	}
	list = append(list, more...)
	for _, v := range r.sessions.All() {
		err := v.Lane().Query(func() {
			switch d := v.(type) {
			case *session.Session:
				fields(add, api.ScopeSession, fmt.Sprint(d.Serial()), &d.Dev.Stats)
			case *session.Guest:
				fields(add, api.ScopeSession, fmt.Sprint(d.Serial()), &d.Dev.Stats)
			}
			for _, q := range v.Session().Inspect().QPs {
				fields(add, api.ScopeQP, fmt.Sprint(q.Num), &q.Counters)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// fields adds every counter of c, a pointer to a struct of counters.
func fields(add func(scope, instance, name string, v uint64), scope, instance string, c any) {
	counters.Each("", c, func(name string, v uint64) { add(scope, instance, name, v) })
}

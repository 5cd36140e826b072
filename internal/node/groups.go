// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"syscall"

	"weft/internal/control/api"
	"weft/internal/proto/ib"
	"weft/internal/verbs/hca"
)

// ipGroups is the host's part in the multicast groups of its own Ethernet port: it
// joins each on every interface that holds an address of the group's family, and
// follows the interfaces that come and go.
type ipGroups struct {
	port func() *hca.Port
	join func(group ib.GID, ifindex int) error // of the link that receives
	quit func(group ib.GID, ifindex int) error
	log  *slog.Logger

	mu     sync.Mutex // guards what follows; lanes hold it while the kernel joins
	groups map[ib.GID]*ipGroup
}

// ipGroup is a group that count queue pairs are attached to.
type ipGroup struct {
	count int
	on    map[int]error // by interface: nil where it is joined
}

// portGroups is the part in groups of all Ethernet ports of a node.
type portGroups struct {
	functions *functionTable
	host      *ipGroups // of function 0
}

var _ hca.IPGroups = portGroups{}

// Join implements hca.IPGroups.
func (g portGroups) Join(function uint16, group ib.GID) error {
	if f := g.functions.byNumber(function); f != nil && f.st != nil {
		f.st.Join(group)
		return nil
	} else if f != nil && f.guest != nil {
		return nil // the guest's network stack joins the group
	}
	return g.host.Join(group)
}

// Leave implements hca.IPGroups.
func (g portGroups) Leave(function uint16, group ib.GID) {
	if f := g.functions.byNumber(function); f != nil && f.st != nil {
		f.st.Leave(group)
		return
	} else if f != nil && f.guest != nil {
		return
	}
	g.host.Leave(group)
}

// Join begins to receive a group, until as many calls of Leave. To be joined on one interface is enough, and so
// is a host without any: such groups reach this node.
func (g *ipGroups) Join(group ib.GID) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	v := g.groups[group]
	if v == nil {
		v = &ipGroup{on: map[int]error{}}
		g.follow(group, v)
		if err := v.err(); err != nil {
			g.log.Warn("a multicast group was refused", "group", group.Addr(), "err", err)
			var e syscall.Errno
			if errors.As(err, &e) {
				return e
			}
			return syscall.EIO
		}
		g.groups[group] = v
	}
	v.count++
	return nil
}

// err returns why the group is joined nowhere, or nil.
func (v *ipGroup) err() (err error) {
	for _, e := range v.on {
		if e == nil {
			return nil
		}
		err = e
	}
	return err
}

// Leave undoes one Join.
func (g *ipGroups) Leave(group ib.GID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	v := g.groups[group]
	if v.count--; v.count > 0 {
		return
	}
	delete(g.groups, group)
	for i, err := range v.on {
		g.leave(group, i, err)
	}
}

// leave ends a membership that Join or follow began with err. Where the
// interface has gone, so has the membership.
func (g *ipGroups) leave(group ib.GID, ifindex int, err error) {
	if err != nil {
		return
	}
	if err := g.quit(group, ifindex); err != nil && !errors.Is(err, syscall.ENODEV) &&
		!errors.Is(err, syscall.EADDRNOTAVAIL) {
		g.log.Warn("a multicast group was not left", "group", group.Addr(), "err", err)
	}
}

// follow joins a group where it can be joined now and is not.
func (g *ipGroups) follow(group ib.GID, v *ipGroup) {
	want := map[int]bool{}
	for _, e := range g.port().GIDs {
		if !e.GID.IsZero() && !e.LocalOnly && e.GID.IsIPv4() == group.IsIPv4() {
			want[e.IfIndex] = true
		}
	}
	for i, err := range v.on {
		if !want[i] {
			g.leave(group, i, err)
			delete(v.on, i)
		}
	}
	for i := range want {
		if err, ok := v.on[i]; !ok || err != nil {
			v.on[i] = g.join(group, i)
		}
	}
}

// addressesChanged follows the host's interfaces.
func (g *ipGroups) addressesChanged() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for group, v := range g.groups {
		g.follow(group, v)
	}
}

// degraded lists the groups that are not joined everywhere.
func (g *ipGroups) degraded() (list []api.Degraded) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for group, v := range g.groups {
		for i, err := range v.on {
			if err != nil {
				list = append(list, api.Degraded{What: "multicast_group",
					Why: fmt.Sprintf("%v is not received on interface %d: %v", group.Addr(), i, err),
					Fix: "sysctl -w net.ipv4.igmp_max_memberships=1000, if it is for their number, and attach again"})
			}
		}
	}
	return list
}

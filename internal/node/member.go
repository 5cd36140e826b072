// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"os"
	"time"

	"weft/internal/control/cli"
	"weft/internal/control/config"
	"weft/internal/host/rundir"
	"weft/internal/mgmt/member"
	"weft/internal/mgmt/member/home"
	"weft/internal/node/membership"
)

// newMembership makes the node's part in a fabric.
func newMembership(n *Node) *membership.Membership {
	host := n.host
	if host == "" {
		host, _ = os.Hostname() // without one a name is made of the GUID
	}
	return membership.New(membership.Config{
		Dir:     n.cfg.Dir,
		GUID:    n.identity,
		Host:    host,
		Port:    n.cfg.TrunkPort,
		Program: buildVersion(),
		Log:     n.log.With("part", "member"),
		Now:     time.Now,
		Durable: n.cfg.StoreKind() != config.StoreMemory,
		Store:   n.mgmt.Store,
		Users:   n.users,
		Drain:   n.sessions.Drain,
		Rekey:   n.mgmt.ReplaceMKey,
	})
}

// users lists what would notice the end of the node: programs, guests, IP links.
func (n *Node) users() (list []member.User, err error) {
	for _, s := range n.sessions.Programs() {
		o := s.Owner()
		list = append(list, member.User{Kind: "program", Name: o.Comm, PID: o.PID, UID: o.UID})
	}
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	cards, err := n.cards.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, v := range cards {
		if v.Guest {
			list = append(list, member.User{Kind: "guest", Name: v.Name, PID: v.PID})
		}
	}
	return list, nil
}

// Join makes this host a member of a fabric. Its node does not run.
func Join(ctx context.Context, s cli.JoinSpec) (j cli.Joined, err error) {
	dir, err := rundir.Acquire(s.Dir, config.Config{}.DirPerm(os.Geteuid()))
	if err != nil {
		return j, err
	}
	defer dir.Close()
	guid, err := dir.Identity()
	if err != nil {
		return j, err
	}
	got, err := membership.Join(ctx, membership.JoinSpec{Dir: s.Dir, GUID: guid, Host: s.Host, Port: s.Port,
		Token: s.Token, Name: s.Name, Roles: s.Roles, Addresses: s.Addresses, Program: buildVersion(), Now: time.Now})
	if err != nil {
		return j, err
	}
	return cli.Joined{Name: got.Name, Fabric: got.Fabric, Members: got.Members, Roles: got.Roles.String(),
		Warnings: got.Warnings}, nil
}

// Leave removes what this host keeps of its fabric. Its node does not run.
func Leave(path string) error {
	dir, err := rundir.Acquire(path, config.Config{}.DirPerm(os.Geteuid()))
	if err != nil {
		return err
	}
	defer dir.Close()
	return home.Open(path).Leave()
}

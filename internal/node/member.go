// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"weft/internal/control/api"
	"weft/internal/control/cli"
	"weft/internal/control/config"
	"weft/internal/host/hostnet"
	"weft/internal/host/rundir"
	"weft/internal/mgmt/member"
	"weft/internal/mgmt/member/home"
	"weft/internal/mgmt/member/peer"
	"weft/internal/mgmt/member/shape"
	"weft/internal/mgmt/store"
	"weft/internal/mgmt/store/etcd"
	"weft/internal/node/membership"
	"weft/internal/node/mgmt"
	"weft/internal/proto/ib"
	"weft/internal/proto/problem"
)

// newMembership makes the node's part in a fabric.
func newMembership(n *Node) *membership.Membership {
	host := n.host
	if host == "" {
		host, _ = os.Hostname() // without one a name is made of the GUID
	}
	return membership.New(membership.Config{
		Dir:          n.cfg.Dir,
		GUID:         n.identity,
		Host:         host,
		Port:         n.cfg.TrunkPort,
		Program:      buildVersion(),
		Log:          n.log.With("part", "member"),
		Now:          time.Now,
		Durable:      n.cfg.StoreKind() != config.StoreMemory,
		Store:        func() (store.Store, error) { return n.mgmt.Store() },
		StoreAddress: n.storeAddress,
		First:        func() bool { return mgmt.FirstVoter(n.mgmt) },
		Users:        n.users,
		Switch:       n.memberSwitch,
		Drain:        n.drain,
		Rekey:        func(ctx context.Context) error { return n.mgmt.ReplaceMKey(ctx) },
		Roster:       n.followRoster,
		MayFound:     n.mayFound,
		Founded:      n.founded,
	})
}

// followRoster keeps one trunk to each member of a roster that is to have one, and has the subnet manager route through
// the members that may carry packets of others.
func (n *Node) followRoster(r *member.Roster) {
	n.mgmt.Transit.Set(r.Transit())
	if n.mesh != nil {
		n.mesh.Follow(r)
	}
	if x := r.ByGUID(n.identity); x != nil && n.sub != nil {
		n.sub.SetMember(x.Name, x.Roles.Has(member.Manager)) // else the node ends
	}
}

// memberSwitch is the switch of this node as plans of trunks need it. Without a switch it has one port, which is none
// for trunks.
func (n *Node) memberSwitch() member.Switch {
	if n.sub == nil {
		return member.Switch{Ports: 1}
	}
	s := member.Switch{Ports: n.cfg.SwitchPorts, Devices: max(shape.DevicePorts, n.sub.DevicePorts())}
	if n.mesh != nil {
		s.Settled = n.mesh.Settled()
	}
	return s
}

// trunkPorts is the number of ports of the switch that trunks to members may use: all that no device has, though fewer
// are planned.
func (n *Node) trunkPorts() int { return n.cfg.SwitchPorts - n.sub.DevicePorts() }

// mayFound returns why this node cannot be the first member of a fabric.
func (n *Node) mayFound() error { return mayBeMember(&n.cfg, "this node") }

// founded opens the store and the trunks of the first member of a fabric to others, while programs use the node.
func (n *Node) founded(ctx context.Context) error {
	if n.sub != nil {
		if err := n.sub.Listen(); err != nil {
			return err
		}
	}
	return n.mgmt.Found(ctx, n.shared())
}

// shared is the node's part in the store of its fabric.
func (n *Node) shared() *mgmt.Fabric {
	roster := n.member.Roster()
	own := n.member.Own()
	f := &mgmt.Fabric{
		Name:       member.GUIDKey(n.identity), // names change
		Listen:     fmt.Sprintf(":%d", n.cfg.StorePort),
		Advertise:  n.storeAddress(),
		Moved:      n.place,
		Joins:      !n.member.Alone(),
		ID:         roster.Fabric,
		Security:   n.storeSecurity(),
		Label:      n.member.Label,
		MayRestore: func() error { return mayRestore(n.member.Roster(), n.identity) },
	}
	roles := rolesOf(roster, n.identity)
	f.Unable = !roles.Has(member.Voter)
	f.NoManager, f.NoAdministrator = !roles.Has(member.Manager), !roles.Has(member.Administrator)
	for i := range roster.Members {
		x := &roster.Members[i]
		if x.GUID != n.identity && x.Roles.Has(member.Voter) && x.Store != "" && x.Store != f.Advertise {
			f.Seeds = append(f.Seeds, x.Store)
		}
	}
	f.Seeds = append(f.Seeds, otherSeeds(roster, n.identity, own)...)
	return f
}

// rolesOf are the roles of the member with a GUID: none where the roster has no record of it, since that is one that
// was removed. Every start has a record: the roster that a host gets when it joins and that of the first member have
// theirs, and where the file is unreadable one is made of the certificate.
func rolesOf(r *member.Roster, guid ib.GUID) member.Role {
	if x := r.ByGUID(guid); x != nil {
		return x.Roles
	}
	return 0
}

// maxOtherSeeds bounds otherSeeds.
const maxOtherSeeds = 16

// otherSeeds lists where the stores of voters may be reached as well: at their other addresses. A voter learns at
// which one it is reached when there are others, and the first host that joins is before that. own are the addresses
// of this host, which lead to no other.
func otherSeeds(r *member.Roster, self ib.GUID, own []string) (list []string) {
	for i := range r.Members {
		x := &r.Members[i]
		_, port, err := net.SplitHostPort(x.Store)
		if x.GUID == self || !x.Roles.Has(member.Voter) || err != nil {
			continue
		}
		for _, a := range x.Addresses {
			host, _, err := net.SplitHostPort(a)
			if err != nil || slices.Contains(own, host) {
				continue
			}
			if at := net.JoinHostPort(host, port); at != x.Store && len(list) < maxOtherSeeds {
				list = append(list, at)
			}
		}
	}
	return list
}

// storeAddress is where the store of this node serves members, or will once the node is one.
func (n *Node) storeAddress() string {
	if n.cfg.StoreKind() != config.StoreEmbedded {
		return ""
	}
	return n.member.Reached(n.cfg.StorePort)
}

// place is where this node is for the store.
func (n *Node) place() etcd.Place {
	p := etcd.Place{Advertise: n.storeAddress()}
	own := hostnet.Addresses(0, member.MaxAddresses)
	if a, err := netip.ParseAddrPort(own[0]); err == nil && !a.Addr().IsLoopback() { // else it has none at present
		p.Own = strings.Join(own, " ")
	}
	return p
}

// self is what this node is to other members.
func (n *Node) self() peer.Self {
	return peer.Self{Certificate: n.member.Certificate, Roster: n.member.Roster, Now: time.Now}
}

// storeClient is TLS to the store of a member. Only voters have one: any other member would be a store of its own
// making to this node, with what its roles do not let it write.
func storeClient(self peer.Self) *tls.Config {
	self.Allow = func(c member.Claims) error {
		if !c.Roles.Has(member.Voter) {
			return problem.New("cannot use the store of "+c.Name, "it has not the role voter", "weft member list")
		}
		return nil
	}
	return self.Client("", "h2", "http/1.1")
}

// mayRestore returns why the member with a GUID may not make itself the authority of its fabric's store.
func mayRestore(r *member.Roster, guid ib.GUID) error {
	const need = member.Voter | member.Administrator
	if rolesOf(r, guid).Has(need) {
		return nil
	}
	return &api.Error{Code: api.CodeRefused, What: "cannot restore the store",
		Why: fmt.Sprintf("this host has not the roles %v", need),
		Fix: "run the command on a host that has them: weft member list"}
}

// storeSecurity authenticates the members to each other at the store, and grants what their roles allow.
func (n *Node) storeSecurity() *etcd.Security {
	self := n.self()
	self.Recent = &peer.Recent{} // a decision for each message of the store
	dir := home.Open(n.cfg.Dir)
	return &etcd.Security{
		Server:  self.Server("h2", "http/1.1"),
		Client:  storeClient(self),
		Files:   etcd.PeerFiles{Cert: dir.Path(home.CertFile), Key: dir.Path(home.KeyFile), CA: dir.Path(home.CAFile)},
		Settled: n.settled,
		Known:   n.member.Knows,
		Able:    n.mayHoldStore,
		Out:     func(name string) bool { return isOut(n.member.Roster(), name) },
		Retain: func(next, own *etcd.Backup) error {
			return retain(next, own, n.member.Roster(), time.Now())
		},
		Admit: func(c *x509.Certificate) (etcd.Caller, error) {
			claims, err := self.Verify(time.Now(), []*x509.Certificate{c})
			if err != nil {
				return etcd.Caller{}, err
			}
			return etcd.Caller{Name: member.GUIDKey(claims.GUID), Voter: claims.Roles.Has(member.Voter),
				Roles: claims.Roles&(member.Voter|member.Manager|member.Administrator) != 0,
				Own:   func(key string) int { return member.OwnLimit(claims, key) },
				Access: func(key, end string, write bool) error {
					if p := member.MayAccess(claims, key, end, write); p != nil {
						return p
					}
					return nil
				}}, nil
		},
	}
}

// mayHoldStore reports whether a member of the fabric may have a copy of its store.
func (n *Node) mayHoldStore(name string) bool {
	return slices.ContainsFunc(n.member.Roster().Members, func(m member.Record) bool {
		return member.GUIDKey(m.GUID) == name && m.Roles.Has(member.Voter)
	})
}

// isOut reports whether a member of the store was removed from the fabric, and has not joined anew.
func isOut(r *member.Roster, name string) bool {
	return slices.ContainsFunc(r.Removed, func(g member.Gone) bool { return member.GUIDKey(g.GUID) == name }) &&
		!slices.ContainsFunc(r.Members, func(m member.Record) bool { return member.GUIDKey(m.GUID) == name })
}

// settled reports whether the replicas of the store are of members, and all members have certificates of CAs that are
// not frozen.
func (n *Node) settled(replicas []string) bool {
	r := n.member.Roster()
	for _, name := range replicas {
		if !slices.ContainsFunc(r.Members, func(m member.Record) bool { return member.GUIDKey(m.GUID) == name }) {
			return false
		}
	}
	return r.Renewed()
}

// drain has the node accept nothing new that would use the host, or with on false accept it again. With force, all that
// uses the host ends; IP links and interfaces that the configuration has are there again after the drain.
func (n *Node) drain(name string, on, force bool) {
	if !on {
		n.gate.Open()
		n.vesw.Resume()
		n.ip.Resume()
		return
	}
	n.gate.Close(name)
	if force {
		why := n.gate.Admit()
		n.sessions.EndPrograms(why)
		n.cards.EndGuests(why)
		n.ip.Suspend()
		n.vesw.Suspend()
	}
}

// users lists what would notice the end of the node: programs, guests, IP links, and interfaces at virtual switches.
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
			list = append(list, member.User{Kind: "guest", Name: v.Name, PID: v.PID, UID: v.UID})
		}
	}
	for _, name := range n.ip.Names() {
		list = append(list, member.User{Kind: "IP link", Name: name})
	}
	for _, name := range n.vesw.Interfaces() {
		list = append(list, member.User{Kind: "VESW port", Name: name})
	}
	return list, nil
}

// Join makes this host a member of a fabric. Its node does not run.
func Join(ctx context.Context, s cli.JoinSpec) (j cli.Joined, err error) {
	_, noDir := os.Lstat(s.Dir)
	_, noIdentity := os.Lstat(filepath.Join(s.Dir, rundir.IdentityFile))
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
		// A join that is pending goes on with the identity. One that was refused leaves nothing that it made.
		if noIdentity != nil && !home.Open(s.Dir).Pending() {
			err = errors.Join(err, os.Remove(filepath.Join(s.Dir, rundir.IdentityFile)))
			if noDir != nil {
				err = errors.Join(err, dir.Discard())
			}
		}
		return j, err
	}
	j = cli.Joined{Name: got.Name, Fabric: got.Fabric, Members: got.Members, Roles: got.Roles.String(),
		Warnings: got.Warnings}
	aside, err := setStoreAside(s.Dir)
	if aside != "" {
		j.Warnings = append(j.Warnings, "what this host had configured alone is in "+aside+" and counts no more")
	}
	return j, err
}

// setStoreAside takes the store of a node that was alone out of use, since the fabric has another. It returns where
// that store is then, empty where there was none.
func setStoreAside(dir string) (aside string, err error) {
	from, to := filepath.Join(dir, rundir.StoreDir), filepath.Join(dir, rundir.StoreDir+".alone")
	if _, err := os.Stat(from); errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err := os.RemoveAll(to); err != nil {
		return "", err
	}
	return to, os.Rename(from, to)
}

// Leave removes what this host keeps of its fabric, its copy of the store with it. Its node does not run.
func Leave(path string) error {
	dir, err := rundir.Acquire(path, config.Config{}.DirPerm(os.Geteuid()))
	if err != nil {
		return err
	}
	defer dir.Close()
	h := home.Open(path)
	if _, err := h.Load(); !errors.Is(err, home.ErrNone) {
		if err := os.RemoveAll(filepath.Join(path, rundir.StoreDir)); err != nil {
			return err
		}
	}
	return h.Leave()
}

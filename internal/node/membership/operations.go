// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"weft/internal/control/api"
	"weft/internal/host/hostnet"
	"weft/internal/mgmt/member"
	"weft/internal/mgmt/member/home"
	"weft/internal/mgmt/member/registry"
	"weft/internal/mgmt/store"
	"weft/internal/proto/problem"
)

// storeWait bounds how long a command waits for the store.
const storeWait = 5 * time.Second

// removeWait is storeWait of a removal, for which a full store may have to make room.
const removeWait = 4 * storeWait

// failed makes an error of a command what people read.
func (m *Membership) failed(err error) error {
	if err == nil {
		return nil
	}
	p := problem.Of("", m.noFabric(err))
	code := api.CodeConflict
	switch {
	case strings.HasPrefix(p.Why, "there is no "):
		code = api.CodeNotFound
	case errors.Is(err, store.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		code = api.CodeInternal
	}
	return &api.Error{Code: code, What: p.What, Why: p.Why, Fix: cmp.Or(p.Fix, "weft store status")}
}

// administer returns the registry where this node may change the fabric: root on a member without that role is no
// administrator.
func (m *Membership) administer() (*registry.Registry, error) {
	r, err := m.open()
	if err != nil {
		return nil, m.failed(err)
	}
	if x := m.roster.Load().ByGUID(m.cfg.GUID); x != nil && x.Roles.Has(member.Administrator) {
		return r, nil
	}
	return nil, &api.Error{Code: api.CodeRefused, Why: "this host has not the role administrator",
		Fix: "run the command on a host that has it: weft member list"}
}

// author is the author of a change, for records.
func (m *Membership) author() string { return "an administrator of " + m.Name() }

// members lists the members: from the store, or while that is away from the roster.
func (m *Membership) members(ctx context.Context) (list []api.FabricMember, err error) {
	if m.cert.Load() == nil {
		return nil, nil
	}
	ctx, stop := context.WithTimeout(ctx, storeWait)
	defer stop()
	if r, err := m.open(); err == nil {
		if all, _, err := r.Members(ctx); err == nil {
			for i := range all {
				list = append(list, m.describe(&all[i]))
			}
			return list, nil
		}
	}
	roster := m.roster.Load()
	for i := range roster.Members {
		list = append(list, m.describe(&registry.Member{Record: roster.Members[i]}))
	}
	return list, nil
}

func (m *Membership) describe(x *registry.Member) api.FabricMember {
	v := api.FabricMember{Name: x.Name, GUID: x.GUID.String(), Roles: roles(x.Roles), State: x.State.String(),
		Self: x.GUID == m.cfg.GUID, Addresses: x.Addresses, Joined: x.Joined, By: x.By}
	if c, err := x509.ParseCertificate(x.Certificate); err == nil {
		v.CertificateEnds = c.NotAfter
	}
	if p := x.Report; p != nil {
		v.Program, v.MoreUsers = p.Program, p.More
		for _, u := range p.Users {
			v.Users = append(v.Users, api.MemberUser{Kind: u.Kind, Name: u.Name, PID: u.PID, UID: u.UID})
		}
	}
	return v
}

func roles(r member.Role) []string { return strings.Split(r.String(), ",") }

func (m *Membership) rename(ctx context.Context, n api.Named[api.MemberName]) error {
	r, err := m.administer()
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(ctx, storeWait)
	defer stop()
	return m.failed(r.Rename(ctx, n.Name, n.Value.Name))
}

func (m *Membership) setShape(ctx context.Context, n api.Named[api.MemberShape]) error {
	r, err := m.administer()
	if err != nil {
		return err
	}
	role := map[string]member.Role{"spine": member.Spine, "leaf": member.Leaf}[n.Value.Role]
	ctx, stop := context.WithTimeout(ctx, storeWait)
	defer stop()
	return m.failed(r.SetShape(ctx, n.Name, role))
}

func (m *Membership) drain(ctx context.Context, name string, d api.MemberDrain) (v api.FabricMember, err error) {
	r, err := m.administer()
	if err != nil {
		return v, err
	}
	ctx, stop := context.WithTimeout(ctx, storeWait+forceWait)
	defer stop()
	before, err := named(ctx, m, r, name)
	if err == nil {
		err = r.SetDrain(ctx, name, d.Drain, d.Force)
	}
	if err != nil {
		return v, m.failed(err)
	}
	tick := time.NewTicker(forceTick)
	defer tick.Stop()
	for end := time.Now().Add(forceWait); ; {
		if v, err = named(ctx, m, r, name); err != nil {
			return v, m.failed(err)
		}
		if !d.Drain || !d.Force || v.State == member.Drained.String() || time.Now().After(end) {
			break
		}
		select {
		case <-ctx.Done():
			return v, m.failed(ctx.Err())
		case <-tick.C:
		}
	}
	if d.Drain && d.Force {
		v.Ended = slices.DeleteFunc(before.Users, func(u api.MemberUser) bool { return slices.Contains(v.Users, u) })
	}
	return v, nil
}

// A drain by force waits forceWait at most until the member reports that nothing uses it.
const (
	forceWait = 3 * time.Second
	forceTick = 100 * time.Millisecond
)

// named is the member with a name as the store has it.
func named(ctx context.Context, m *Membership, r *registry.Registry, name string) (v api.FabricMember, err error) {
	all, _, err := r.Members(ctx)
	for i := range all {
		if all[i].Name == name {
			return m.describe(&all[i]), nil
		}
	}
	return v, cmp.Or(err, error(problem.New("cannot drain the member", "there is no member "+name, "weft member list")))
}

func (m *Membership) remove(ctx context.Context, q api.MemberRemoval) (v api.RemovedMember, err error) {
	r, err := m.administer()
	if err != nil {
		return v, err
	}
	ctx, stop := context.WithTimeout(ctx, removeWait)
	defer stop()
	done, err := r.Remove(ctx, q.Name, m.author(), q.Force)
	if err != nil {
		return v, m.failed(err)
	}
	m.cfg.Log.Info("member removed", "name", q.Name, "replaced", done.List())
	return api.RemovedMember{Name: q.Name, Replaced: done.List()}, nil
}

func (m *Membership) rotate(ctx context.Context) (v api.RotatedSecrets, err error) {
	r, err := m.administer()
	if err != nil {
		return v, err
	}
	ctx, stop := context.WithTimeout(ctx, 2*storeWait)
	defer stop()
	if err := r.Rotate(ctx); err != nil {
		return v, m.failed(err)
	}
	m.cfg.Log.Info("the secrets of the fabric are being replaced", "author", m.author())
	return api.RotatedSecrets{Replaced: []string{"tokens", "M_Key"}, Begun: []string{"CA", "certificates"}}, nil
}

func (m *Membership) tokens(ctx context.Context) (list []api.Token, err error) {
	if m.cert.Load() == nil {
		return nil, nil
	}
	r, err := m.administer()
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithTimeout(ctx, storeWait)
	defer stop()
	all, err := r.Tokens(ctx)
	for i := range all {
		list = append(list, describeToken(&all[i]))
	}
	return list, m.failed(err)
}

func describeToken(t *member.Token) api.Token {
	return api.Token{ID: t.ID, Roles: roles(t.Roles), Uses: t.Uses, Used: t.Used, Ends: t.End, By: t.By}
}

func (m *Membership) deleteToken(ctx context.Context, id string) error {
	r, err := m.administer()
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(ctx, storeWait)
	defer stop()
	return m.failed(r.DeleteToken(ctx, id))
}

func (m *Membership) createToken(ctx context.Context, n api.NewToken) (t api.Token, err error) {
	spec := registry.TokenSpec{Roles: member.HostRoles, Uses: n.Uses, Life: n.LifeNS}
	if n.Roles != "" {
		if spec.Roles, err = member.ParseRoles(n.Roles); err != nil {
			return t, &api.Error{Code: api.CodeInvalid, Why: err.Error(), Fix: "weft token --help"}
		}
	}
	ctx, stop := context.WithTimeout(ctx, storeWait)
	defer stop()
	founded := ""
	if m.cert.Load() == nil {
		if founded, err = m.found(ctx); err != nil {
			return t, m.failed(err)
		}
	}
	r, err := m.administer()
	if err != nil {
		return t, err
	}
	if p := m.closed(); p != nil {
		return t, m.failed(p) // a line that no host can use
	}
	if err := awaitCA(ctx, m); err != nil {
		return t, m.failed(err)
	}
	spec.By = m.Name()
	secret, made, err := r.CreateToken(ctx, spec)
	if err != nil {
		return t, m.failed(err)
	}
	t = describeToken(&made)
	t.Line, t.Founded = "weft join "+m.host()+" --token "+secret.Text(), founded
	return t, nil
}

// awaitEvery is how often awaitCA looks.
const awaitEvery = 50 * time.Millisecond

// awaitCA waits until the CA that signs has signed the certificate of this node, as it has about a second after a
// removal: a token is bound to that CA, and the node shows its certificate to the host that joins.
func awaitCA(ctx context.Context, m *Membership) error {
	tick := time.NewTicker(awaitEvery)
	defer tick.Stop()
	for {
		r, err := m.open()
		if err != nil {
			return err
		}
		now, err := r.Roster(ctx)
		if err != nil {
			return err
		}
		if now.SignedBy(m.cert.Load().Leaf) == signing(now) {
			return nil
		}
		m.wake()
		select {
		case <-ctx.Done():
			return problem.New("cannot make a token", "this node has no certificate of the new CA yet",
				"weft status; then repeat the command")
		case <-tick.C:
		}
	}
}

// closed is why no host can join by way of this node; nil: one can.
func (m *Membership) closed() *problem.Error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.faults["fabric_closed"]
}

// defaultPort is the port of trunks that weft join takes where none is named.
const defaultPort = 4792

// host is this host as the next one names it: its first address, of those that weft join --address named if there are
// any, with the port where it is another than the default.
func (m *Membership) host() string {
	a := m.addresses()[0]
	if host, port, err := net.SplitHostPort(a); err == nil && port == strconv.Itoa(defaultPort) {
		return host
	}
	return a
}

// found makes a fabric with this node as its first member. Its keys are on disk before the store has them.
func (m *Membership) found(ctx context.Context) (fabric string, err error) {
	const what = "cannot make a fabric"
	m.founding.Lock()
	defer m.founding.Unlock()
	if m.cert.Load() != nil {
		return "", nil // another command made it
	}
	s, missing := m.cfg.Store()
	if m.cfg.MayFound != nil && missing == nil {
		missing = m.cfg.MayFound()
	}
	switch {
	case missing != nil:
		return "", missing
	case s == nil || !m.cfg.Durable:
		return "", problem.New(what, "this node keeps nothing: its store is in memory, or it has none",
			"weft down; weft up --detach --store embedded")
	}
	name := member.NameOf(m.cfg.Host)
	if name == "" {
		name = "m-" + member.GUIDKey(m.cfg.GUID)[4:12]
	}
	if p := m.answerHosts(); p != nil {
		return "", p
	}
	id, err := m.dir.Join(m.cfg.GUID)
	if err != nil {
		return "", err
	}
	r := registry.New(registry.Config{Store: s, Now: m.cfg.Now, GUID: m.cfg.GUID, Identity: id, Rekey: m.cfg.Rekey})
	cert, err := r.Found(ctx, registry.Founder{Name: name, By: "the first member",
		Addresses: hostnet.Addresses(uint16(m.cfg.Port), member.MaxAddresses), Store: m.storeAddress()})
	if err != nil {
		return "", err
	}
	roster, err := r.Roster(ctx)
	if err != nil {
		return "", err
	}
	keys, err := id.Encode()
	if err != nil {
		return "", err
	}
	kept := &home.Membership{Fabric: roster.Fabric, Name: name, GUID: m.cfg.GUID, Keys: keys, Certificate: cert,
		CAs: roster.CAs}
	if err := m.dir.Commit(kept, roster); err != nil {
		return "", err
	}
	if err := m.adopt(kept, roster); err != nil {
		return "", err
	}
	m.cfg.Log.Info("fabric made", "fabric", roster.Fabric, "name", name)
	if m.cfg.Founded != nil {
		if err := m.cfg.Founded(ctx); err != nil {
			m.cfg.Log.Error("the fabric is made, and other hosts cannot join it", "err", err)
			m.fault("fabric_closed", problem.New("the fabric is made, and other hosts cannot join it until this node "+
				"starts again", problem.Of("", err).Why, "weft down; weft up --detach; weft token"))
		}
	}
	m.live()
	return roster.Fabric, nil
}

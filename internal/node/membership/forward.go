// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"weft/internal/control/api"
	"weft/internal/mgmt/member"
	"weft/internal/mgmt/member/join"
	"weft/internal/mgmt/member/peer"
	"weft/internal/proto/ib"
)

// Bounds of requests to other members. A connection without requests is closed before the other end closes it.
const (
	dialTime    = 2 * time.Second // for one address
	idleTime    = 4 * time.Second
	maxAnswer   = 256 << 20
	memberHost  = ".node.weft.internal" // behind GUID and key, in the addresses of requests; no name is resolved
	maxIdleConn = 2

	complainEvery = time.Second
)

// Commands passes commands of users on to other members, and serves those that other members pass on. Its methods may
// be called by several goroutines.
type Commands struct {
	m      *Membership
	client http.Client
	count  CommandCounters

	mu         sync.Mutex // guards what follows
	handler    http.Handler
	complained time.Time // when a refusal was a warning
}

// CommandCounters are the commands that other members passed on to this one.
type CommandCounters struct {
	Commands        atomic.Uint64 // that came
	RefusedCommands atomic.Uint64 // no certificate of a member, or not the role
}

// newCommands returns the commands of a membership.
func newCommands(m *Membership) *Commands {
	c := &Commands{m: m}
	c.client = http.Client{
		Transport: &http.Transport{DialTLSContext: c.dial, IdleConnTimeout: idleTime, MaxIdleConnsPerHost: maxIdleConn,
			ResponseHeaderTimeout: workTime},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c
}

// Commands are the commands that members pass on to each other.
func (m *Membership) Commands() *Commands { return m.commands }

// Serve makes mux what answers other members; nil: nothing does.
func (c *Commands) Serve(mux *http.ServeMux) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handler = nil
	if mux != nil {
		c.handler = api.ForMembers(mux, c.identify)
	}
}

// ServeHTTP implements http.Handler, for the listener of the join protocol.
func (c *Commands) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	h := c.handler
	c.mu.Unlock()
	if h == nil {
		http.Error(w, `{"code":"not_ready","why":"the node is starting or ending"}`, http.StatusServiceUnavailable)
		return
	}
	h.ServeHTTP(w, r)
}

// identify returns the member that a request is of, by the certificate of its connection and the roster as it is now.
func (c *Commands) identify(r *http.Request, need api.Right) (api.Caller, error) {
	c.count.Commands.Add(1)
	if r.TLS == nil {
		c.refused(r, "", errors.New("the connection is not TLS"))
		return api.Caller{}, &api.Error{Code: api.CodeRefused, Why: "the connection has no certificate"}
	}
	claims, err := c.m.self().Verify(c.m.cfg.Now(), r.TLS.PeerCertificates)
	if err != nil {
		c.refused(r, "", err)
		return api.Caller{}, &api.Error{Code: api.CodeRefused, Why: err.Error(), Fix: "weft member list"}
	}
	if p := member.MayForward(claims, need.Change, need.Reads); p != nil {
		c.refused(r, claims.Name, p)
		return api.Caller{}, &api.Error{Code: api.CodeRefused, Why: p.Why, Fix: p.Fix}
	}
	return api.Caller{Member: claims.Name, Node: claims.GUID}, nil
}

// refused notes a request that was refused. A stranger is a warning at most once a second: it can send many.
func (c *Commands) refused(r *http.Request, name string, why error) {
	c.count.RefusedCommands.Add(1)
	now := c.m.cfg.Now()
	c.mu.Lock()
	level := slog.LevelDebug
	if d := now.Sub(c.complained); d < 0 || d >= complainEvery {
		level, c.complained = slog.LevelWarn, now
	}
	c.mu.Unlock()
	c.m.cfg.Log.Log(r.Context(), level, "forwarded command refused", "from", r.RemoteAddr, "member", name,
		"method", r.Method, "path", r.URL.Path, "err", why)
}

// self is this member to others.
func (m *Membership) self() peer.Self {
	return peer.Self{Certificate: m.Certificate, Roster: m.Roster, Now: m.cfg.Now}
}

// Self is this node as a member. in is false where it is in no fabric; an error is why it is a member no more.
func (c *Commands) Self() (claims member.Claims, in bool, err error) {
	cert := c.m.cert.Load()
	if cert == nil {
		return claims, false, nil
	}
	claims, err = c.m.self().Verify(c.m.cfg.Now(), []*x509.Certificate{cert.Leaf})
	return claims, true, err
}

// Ask has the node of a member do what is requested. Only a member with the role manager can be the master: what names
// another one, such as a datagram of any node of the subnet, is refused before anything is sent. The roster decides for
// each request, also where a connection is open.
func (c *Commands) Ask(ctx context.Context, node ib.GUID, r *api.Forwarded) (*api.Answer, error) {
	x, err := c.manager(node)
	if err != nil {
		return nil, &api.UnreachedError{Err: err}
	}
	q, err := r.NewRequest(ctx, "https://"+hostOf(x)+join.PathCommands)
	if err != nil {
		return nil, err
	}
	resp, err := c.client.Do(q)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, err
	}
	return &api.Answer{Status: resp.StatusCode, Body: b}, nil
}

// manager returns the record of a member that may be the master.
func (c *Commands) manager(node ib.GUID) (*member.Record, error) {
	if r := c.m.roster.Load(); r != nil {
		if x := r.ByGUID(node); x != nil {
			return x, mayManage(x.Name, x.Roles)
		}
	}
	return nil, fmt.Errorf("%s is no member of the fabric", member.GUIDKey(node))
}

func mayManage(name string, roles member.Role) error {
	if roles.Has(member.Manager) {
		return nil
	}
	return fmt.Errorf("the member %s has the roles %v, and not manager: it is not the master", name, roles)
}

// hostOf is the host of requests to a member: its GUID, and its key, so that no connection serves another key.
func hostOf(x *member.Record) string {
	return member.GUIDKey(x.GUID) + "." + hex.EncodeToString(x.Key[:16]) + memberHost
}

// dial connects to the member of a host of hostOf, by the first of its addresses that answers.
func (c *Commands) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	err = fmt.Errorf("%s is no member of the fabric any more", host)
	roster := c.m.roster.Load()
	for i := 0; roster != nil && i < len(roster.Members); i++ {
		x := &roster.Members[i]
		if hostOf(x) != host {
			continue
		}
		err = fmt.Errorf("the member %s has no address", x.Name)
		for _, a := range x.Addresses {
			var conn net.Conn
			if conn, err = c.connect(ctx, x, a); err == nil {
				return conn, nil
			}
		}
	}
	return nil, &api.UnreachedError{Err: err}
}

// connect opens a TLS connection to a member at an address. Its certificate has the role manager as well: the smaller
// set of roles counts.
func (c *Commands) connect(ctx context.Context, x *member.Record, address string) (net.Conn, error) {
	ctx, stop := context.WithTimeout(ctx, dialTime)
	defer stop()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	self := c.m.self()
	self.Allow = func(other member.Claims) error {
		if other.GUID != x.GUID {
			return fmt.Errorf("the host is the member %s, not %s", other.Name, x.Name)
		}
		return mayManage(other.Name, other.Roles)
	}
	t := tls.Client(conn, self.Client(x.Name, "http/1.1"))
	if err := t.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return t, nil
}

// close ends the connections to other members.
func (c *Commands) close() {
	c.Serve(nil)
	c.client.CloseIdleConnections()
}

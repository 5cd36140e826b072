// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
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
	memberHost  = ".node.weft.internal" // behind the GUID, in the addresses of requests; no name is resolved
	maxIdleConn = 2
)

// Commands passes commands of users on to other members, and serves those that other members pass on. Its methods may
// be called by several goroutines.
type Commands struct {
	m      *Membership
	client http.Client

	mu      sync.Mutex // guards what follows
	handler http.Handler
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
func (c *Commands) identify(r *http.Request, change bool) (api.Caller, error) {
	if r.TLS == nil {
		return api.Caller{}, &api.Error{Code: api.CodeRefused, Why: "the connection has no certificate"}
	}
	claims, err := c.m.self().Verify(c.m.cfg.Now(), r.TLS.PeerCertificates)
	if err != nil {
		return api.Caller{}, &api.Error{Code: api.CodeRefused, Why: err.Error(), Fix: "weft member list"}
	}
	if p := member.MayForward(claims, change); p != nil {
		return api.Caller{}, &api.Error{Code: api.CodeRefused, Why: p.Why, Fix: p.Fix}
	}
	return api.Caller{Member: claims.Name, Node: claims.GUID}, nil
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

// Ask has the node of a member do what is requested.
func (c *Commands) Ask(ctx context.Context, node ib.GUID, r *api.Forwarded) (*api.Answer, error) {
	q, err := r.NewRequest(ctx, "https://"+member.GUIDKey(node)+memberHost+join.PathCommands)
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

// dial connects to the member with the GUID in addr, by the first of its addresses that answers.
func (c *Commands) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	key := strings.TrimSuffix(host, memberHost)
	err = fmt.Errorf("%s is no member of the fabric", key)
	roster := c.m.roster.Load()
	for i := 0; roster != nil && i < len(roster.Members); i++ {
		x := &roster.Members[i]
		if member.GUIDKey(x.GUID) != key {
			continue
		}
		err = fmt.Errorf("the member %s has no address", x.Name)
		for _, a := range x.Addresses {
			var conn net.Conn
			if conn, err = c.connect(ctx, x.Name, a); err == nil {
				return conn, nil
			}
		}
	}
	return nil, &api.UnreachedError{Err: err}
}

// connect opens a TLS connection to a member at an address.
func (c *Commands) connect(ctx context.Context, name, address string) (net.Conn, error) {
	ctx, stop := context.WithTimeout(ctx, dialTime)
	defer stop()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	t := tls.Client(conn, c.m.self().Client(name, "http/1.1"))
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

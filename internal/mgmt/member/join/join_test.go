// SPDX-License-Identifier: Apache-2.0

package join

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weft/internal/mgmt/member"
	"weft/internal/mgmt/member/registry"
	"weft/internal/mgmt/store"
	"weft/internal/proto/ib"
	"weft/internal/proto/problem"
)

func TestMain(m *testing.M) {
	// A server lingers half a second after a request that it did not read to its end.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

func guid(n int) ib.GUID { return ib.GUID(0x0200000000000000 | uint64(n)<<16) }

// site is a member with its server on loopback.
type site struct {
	*registry.Registry
	t       *testing.T
	id      *member.Identity
	cert    []byte
	server  *Server
	address string
	log     *syncBuffer
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func newSite(t *testing.T, s store.Store, n int) *site {
	t.Helper()
	id, err := member.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	return &site{t: t, id: id, log: &syncBuffer{}, Registry: registry.New(registry.Config{Store: s, Now: time.Now,
		GUID: guid(n), Identity: id})}
}

// serve starts the server; change may replace parts of its configuration.
func (s *site) serve(change func(*ServerConfig)) {
	s.t.Helper()
	c := ServerConfig{Backend: s, Now: time.Now, MTU: func(net.Conn) int { return 1500 },
		Log: slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Certificate: func() (*tls.Certificate, error) {
			r, err := s.Roster(context.Background())
			if err != nil {
				return nil, err
			}
			return chain(s.id, s.cert, r), nil
		}}
	if change != nil {
		change(&c)
	}
	s.server = NewServer(c)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	s.address = l.Addr().String()
	done := make(chan error, 1)
	go func() { done <- s.server.Serve(l) }()
	s.t.Cleanup(func() {
		s.server.Close()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
	})
}

// chain is a certificate with the CA that signed it.
func chain(id *member.Identity, cert []byte, r *member.Roster) *tls.Certificate {
	c := &tls.Certificate{Certificate: [][]byte{cert}, PrivateKey: id.Sign}
	x, _ := x509.ParseCertificate(cert)
	for _, ca := range r.CAs {
		if y, err := x509.ParseCertificate(ca.Certificate); err == nil && x.CheckSignatureFrom(y) == nil {
			c.Certificate = append(c.Certificate, ca.Certificate)
		}
	}
	return c
}

// fabric is a fabric with one member that serves.
func fabric(t *testing.T) (*site, *store.Memory) {
	t.Helper()
	s := store.NewMemory()
	t.Cleanup(func() { s.Close() })
	a := newSite(t, s, 1)
	var err error
	if a.cert, err = a.Found(t.Context(), registry.Founder{Name: "a1", Addresses: []string{"a1:4792"}}); err != nil {
		t.Fatal(err)
	}
	a.serve(nil)
	return a, s
}

func (s *site) token(uses int) member.Secret {
	s.t.Helper()
	x, _, err := s.CreateToken(s.t.Context(), registry.TokenSpec{Roles: member.HostRoles, Uses: uses, By: "root at a1"})
	if err != nil {
		s.t.Fatal(err)
	}
	return x
}

// joiner is a host that joins.
type joiner struct {
	Client
	id *member.Identity
	q  member.Request
}

func newJoiner(t *testing.T, n int, name string) *joiner {
	t.Helper()
	id, err := member.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	return &joiner{Client{Now: time.Now, MTU: func(net.Conn) int { return 1500 }}, id,
		member.Request{Program: "test", Name: name, GUID: guid(n), Addresses: []string{fmt.Sprintf("h%d:4792", n)}}}
}

func (j *joiner) join(t *testing.T, address string, s member.Secret) (*registry.Answer, string) {
	t.Helper()
	a, p := j.Join(t.Context(), address, s, j.id, j.q)
	if p != nil {
		if strings.Contains(p.Error(), "\n") || p.Fix == "" || !strings.HasPrefix(p.Error(), "cannot ") {
			t.Errorf("not one line with a fix: %q", p.Error())
		}
		return nil, p.Error()
	}
	return a, ""
}

// TestJoin: a host joins with one request, renews its certificate, and no secret is in a log.
func TestJoin(t *testing.T) {
	a, _ := fabric(t)
	s := a.token(1)
	j := newJoiner(t, 2, "b1")
	got, fault := j.join(t, a.address, s)
	if fault != "" {
		t.Fatal(fault)
	}
	if len(got.Roster.Members) != 2 || got.Repeat {
		t.Errorf("%d members, %v", len(got.Roster.Members), got.Repeat)
	}
	own := *chain(j.id, got.Certificate, &got.Roster)
	renewed, p := j.Renew(t.Context(), a.address, own, &got.Roster, j.id)
	if p != nil {
		t.Fatal(p)
	}
	if !bytes.Equal(renewed.Certificate, got.Certificate) {
		t.Error("another certificate, which is not due")
	}
	// The answer was lost: the host gets one again.
	again, fault := j.join(t, a.address, s)
	if fault != "" || !again.Repeat {
		t.Errorf("%v, %s", again, fault)
	}
	// Another host does not, with the same token.
	if _, fault := newJoiner(t, 3, "c1").join(t, a.address, s); !strings.Contains(fault, "has been used once") {
		t.Error(fault)
	}
	if log := a.log.String(); strings.Contains(log, strings.Split(s.Text(), ".")[1]) || !strings.Contains(log,
		"name=b1") {
		t.Error(log)
	}
	// A removed member renews nothing.
	if _, err := a.Remove(t.Context(), "b1", "root", true); err != nil {
		t.Fatal(err)
	}
	if _, p := j.Renew(t.Context(), a.address, own, &got.Roster, j.id); p == nil || !strings.Contains(p.Error(),
		"was removed") {
		t.Errorf("%v", p)
	}
	if n := a.server.Count.RefusedRenewals.Load(); n != 1 {
		t.Errorf("%d renewals refused", n)
	}
	// Without a certificate neither.
	if _, p := j.Renew(t.Context(), a.address, tls.Certificate{}, &got.Roster, j.id); p == nil {
		t.Error("renewed without a certificate")
	}
}

// TestElsewhere: a member that does not have the CA's key names voters, also ones that do not answer.
func TestElsewhere(t *testing.T) {
	a, s := fabric(t)
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := dead.Addr().String()
	dead.Close()
	leaf := newSite(t, s, 5)
	leaf.id, leaf.cert = a.id, a.cert
	leaf.serve(func(c *ServerConfig) { c.Elsewhere = func() []string { return []string{gone, a.address} } })
	if _, fault := newJoiner(t, 2, "b1").join(t, leaf.address, a.token(1)); fault != "" {
		t.Error(fault)
	}
	// A host without a token learns of no voter.
	stranger := a.token(1)
	if err := a.DeleteToken(t.Context(), stranger.ID); err != nil {
		t.Fatal(err)
	}
	j := newJoiner(t, 4, "d1")
	if _, list, p := j.joinAt(t.Context(), leaf.address, stranger, j.id, j.q); p == nil || len(list) != 0 ||
		!strings.Contains(p.Error(), "finds no such token") {
		t.Errorf("a stranger is named %q, %v", list, p)
	}
	// In a circle.
	round := newSite(t, s, 6)
	round.id, round.cert = a.id, a.cert
	round.serve(func(c *ServerConfig) { c.Elsewhere = func() []string { return []string{round.address} } })
	if _, fault := newJoiner(t, 3, "c1").join(t, round.address, a.token(1)); !strings.Contains(fault,
		"names no voter") {
		t.Error(fault)
	}
}

// spy counts calls of a backend.
type spy struct {
	Backend
	joins int
}

func (s *spy) TokenHash(context.Context, string) (member.Key, error) { return member.Key{1}, nil }

func (s *spy) Join(ctx context.Context, q *member.Request, mtu int, host string) (*registry.Answer, error) {
	s.joins++
	return nil, errors.New("stolen " + fmt.Sprint(len(q.Secret)))
}

// TestImpostor: a removed member, which has a certificate and the CA's certificate but not the token's hash, never
// receives the secret; nor does one that relays between the joiner and a member.
func TestImpostor(t *testing.T) {
	a, s := fabric(t)
	thief := newSite(t, s, 5)
	thief.id, thief.cert = a.id, a.cert // as if it had been a member
	k := &spy{}
	thief.serve(func(c *ServerConfig) { c.Backend = k })
	_, fault := newJoiner(t, 2, "b1").join(t, thief.address, a.token(1))
	if !strings.Contains(fault, "no proof that it has the token") || k.joins != 0 {
		t.Errorf("%d secrets received, %s", k.joins, fault)
	}
	relay := &relay{spy{}, &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}, a.address}
	between := newSite(t, s, 6)
	between.id, between.cert = a.id, a.cert
	between.serve(func(c *ServerConfig) { c.Backend = relay })
	_, fault = newJoiner(t, 2, "b1").join(t, between.address, a.token(1))
	if !strings.Contains(fault, "no proof that it has the token") || relay.joins != 0 {
		t.Errorf("%d secrets relayed, %s", relay.joins, fault)
	}
}

// relay gets a proof from a member. The best that it can do with it is to use it as its own hash.
type relay struct {
	spy
	http   *http.Client
	member string
}

func (r *relay) TokenHash(_ context.Context, id string) (k member.Key, err error) {
	resp, err := r.http.Post("https://"+r.member+pathOpen, "", strings.NewReader(`{"token":"`+id+`"}`))
	if err != nil {
		return k, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	var o openAnswer
	if err == nil {
		err = decodeOne(b, &o)
	}
	if err == nil && len(o.Proof) != len(k) {
		err = errors.New("no proof")
	}
	copy(k[:], o.Proof)
	return k, err
}

// TestRefused: what is wrong is named in one line, and nothing has changed.
func TestRefused(t *testing.T) {
	a, s := fabric(t)
	other, _ := fabric(t)
	good := a.token(0)
	dump := func() string {
		all, err := s.List(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(all.Entries)
	}
	before := dump()
	for name, x := range map[string]struct {
		change func(*joiner)
		at     string
		token  member.Secret
		want   string
	}{
		"another fabric": {nil, a.address, other.token(1), "is of another fabric than the token"},
		"clock ahead": {func(j *joiner) { j.Now = func() time.Time { return time.Now().Add(time.Hour) } }, a.address,
			good,
			"this host's clock is 1h0m0s ahead"},
		"clock behind": {func(j *joiner) { j.Now = func() time.Time { return time.Now().Add(-time.Hour) } },
			a.address, good,
			"this host's clock is 1h0m0s behind"},
		"duplicate name": {func(j *joiner) { j.q.Name = "a1" }, a.address, good, "the fabric has a member a1"},
		"duplicate GUID": {func(j *joiner) { j.q.GUID = guid(1) }, a.address, good, "the node's directory was copied"},
		"copied keys":    {func(j *joiner) { j.id = a.id }, a.address, good, "the identity was copied"},
		"no path":        {func(j *joiner) { j.MTU = nil }, a.address, good, "its MTU is unknown"},
		"no port":        {nil, "127.0.0.1", good, "is no HOST:PORT"},
		"no host":        {nil, "no-such-host.invalid:4792", good, "has no address"},
		"nothing there":  {nil, "127.0.0.1:1", good, "nothing accepts connections"},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJoiner(t, 2, "b1")
			if x.change != nil {
				x.change(j)
			}
			if _, fault := j.join(t, x.at, x.token); !strings.Contains(fault, x.want) {
				t.Errorf("%q, want %q", fault, x.want)
			}
		})
	}
	deleted := a.token(1)
	if err := a.DeleteToken(t.Context(), deleted.ID); err != nil {
		t.Fatal(err)
	}
	if _, fault := newJoiner(t, 2, "b1").join(t, a.address, deleted); !strings.Contains(fault,
		"it has no token "+deleted.ID) {
		t.Error(fault)
	}
	strip := func(s string) string { // the change key counts tokens
		return s[:strings.Index(s, "fabric/change")] + s[strings.Index(s, "fabric/identity"):]
	}
	if after := dump(); strip(after) != strip(before) {
		t.Error("the store changed")
	}
}

// undecided is a member that cannot use the store.
type undecided struct {
	Backend
	why error
}

func (u undecided) Join(context.Context, *member.Request, int, string) (*registry.Answer, error) {
	return nil, u.why
}

func (u undecided) Renew(context.Context, *x509.Certificate) (*registry.Answer, error) {
	return nil, u.why
}

// TestUndecided: a member without the store refuses nothing: the host may be a member, and tries again.
func TestUndecided(t *testing.T) {
	away := &store.Error{Kind: store.ErrUnavailable, What: "cannot read fabric/change", Why: "it is away", Fix: "wait"}
	removed := problem.New("cannot renew the certificate", "b1 was removed", "weft leave")
	for _, x := range []struct {
		why  error
		lost bool
	}{{away, true}, {fmt.Errorf("read: %w", context.DeadlineExceeded), true}, {registry.ErrNoKey, true},
		{removed, false}} {
		a, _ := fabric(t)
		r, err := a.Roster(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		token := a.token(1)
		b := *a // with a server of its own
		b.serve(func(c *ServerConfig) { c.Backend = undecided{a, x.why} })
		j := newJoiner(t, 2, "b1")
		_, p := j.Join(t.Context(), b.address, token, j.id, j.q)
		if p == nil || Lost(p) != x.lost || !strings.Contains(p.Error(), problem.Of("", x.why).Why) {
			t.Errorf("join: %v, lost %v, want %v", p, Lost(p), x.lost)
		}
		_, p = j.Renew(t.Context(), b.address, *chain(a.id, a.cert, r), r, a.id)
		if p == nil || Lost(p) != x.lost || !strings.Contains(p.Error(), problem.Of("", x.why).Why) {
			t.Errorf("renew: %v, lost %v, want %v", p, Lost(p), x.lost)
		}
	}
}

// lossy loses the answer of the first join after it was kept.
type lossy struct {
	Backend
	mu   sync.Mutex
	lost bool
}

func (l *lossy) Join(ctx context.Context, q *member.Request, mtu int, host string) (*registry.Answer, error) {
	a, err := l.Backend.Join(ctx, q, mtu, host)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && !l.lost {
		l.lost = true
		panic(http.ErrAbortHandler)
	}
	return a, err
}

// TestLostAnswer: a member that dies after the transaction leaves what the next attempt completes.
func TestLostAnswer(t *testing.T) {
	a, s := fabric(t)
	dying := newSite(t, s, 1)
	dying.id, dying.cert = a.id, a.cert
	dying.serve(func(c *ServerConfig) { c.Backend = &lossy{Backend: a} })
	j := newJoiner(t, 2, "b1")
	token := a.token(1)
	if _, fault := j.join(t, dying.address, token); !strings.Contains(fault, "weft join again") {
		t.Fatal(fault)
	}
	got, fault := j.join(t, dying.address, token)
	if fault != "" || !got.Repeat || len(got.Roster.Members) != 2 {
		t.Errorf("%v, %s", got, fault)
	}
}

// TestWrongAnswer: a member that answers with another's certificate, or a roster without the CA, is refused.
func TestWrongAnswer(t *testing.T) {
	a, s := fabric(t)
	other, _ := fabric(t)
	for name, change := range map[string]func(*registry.Answer){
		"another's certificate":   func(x *registry.Answer) { x.Certificate = a.cert },
		"no certificate":          func(x *registry.Answer) { x.Certificate = nil },
		"another fabric's roster": func(x *registry.Answer) { r, _ := other.Roster(t.Context()); x.Roster = *r },
		"a roster without it":     func(x *registry.Answer) { x.Roster.Members = x.Roster.Members[:1] },
		"no CA":                   func(x *registry.Answer) { x.Roster.CAs = nil },
	} {
		odd := newSite(t, s, 1)
		odd.id, odd.cert = a.id, a.cert
		odd.serve(func(c *ServerConfig) { c.Backend = &changed{a, change} })
		if _, fault := newJoiner(t, 2, "b1").join(t, odd.address, a.token(0)); !strings.Contains(fault, "is wrong") {
			t.Errorf("%s: %q", name, fault)
		}
		if _, err := a.Remove(t.Context(), "b1", "root", true); err != nil {
			t.Fatal(err)
		}
		// The CA was not the member's, or was: its certificate follows.
		x, err := a.Renew(t.Context(), parse(t, a.cert))
		if err != nil {
			t.Fatal(err)
		}
		a.cert = x.Certificate
	}
}

type changed struct {
	*site
	change func(*registry.Answer)
}

func (c *changed) Join(ctx context.Context, q *member.Request, mtu int, host string) (*registry.Answer, error) {
	a, err := c.site.Join(ctx, q, mtu, host)
	if err == nil {
		c.change(a)
	}
	return a, err
}

func parse(t *testing.T, der []byte) *x509.Certificate {
	t.Helper()
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestGarbage: what is no request is refused and counted, and the next host joins.
func TestGarbage(t *testing.T) {
	a, _ := fabric(t)
	web := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	post := func(path, body string) int {
		t.Helper()
		r, err := web.Post("https://"+a.address+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		return r.StatusCode
	}
	for _, x := range []struct {
		path, body string
		want       int
	}{
		{pathOpen, "", 400}, {pathOpen, "{", 400}, {pathOpen, `{}{}`, 400}, {pathOpen, `{"token":7}`, 400},
		{pathOpen, `{"token":"../../fabric/identity"}`, 403}, {pathOpen, `{"token":""}`, 403},
		{pathJoin, "[]", 400}, {pathJoin, `{}`, 403}, {pathJoin, strings.Repeat(" ", MaxBody+1), 400},
		{"/weft/2/open", `{}`, 404}, {"/", "", 404},
	} {
		if got := post(x.path, x.body); got != x.want {
			t.Errorf("%s %.40q: %d, want %d", x.path, x.body, got, x.want)
		}
	}
	if n := a.server.Count.RefusedMalformed.Load(); n != 8 {
		t.Errorf("%d malformed requests counted", n)
	}
	c, err := net.Dial("tcp", a.address)
	if err != nil {
		t.Fatal(err)
	}
	c.Write(bytes.Repeat([]byte{0xa5}, 4096))
	io.Copy(io.Discard, c) // until the server closes it
	c.Close()
	if c, err := tls.Dial("tcp", a.address, &tls.Config{InsecureSkipVerify: true,
		MaxVersion: tls.VersionTLS12}); err == nil {
		c.Close()
		t.Error("TLS 1.2 is accepted")
	}
	deadline := time.Now().Add(10 * time.Second)
	for ; a.server.Count.Handshakes.Load() < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d failed handshakes counted", a.server.Count.Handshakes.Load())
		}
	}
	if _, fault := newJoiner(t, 2, "b1").join(t, a.address, a.token(1)); fault != "" {
		t.Error(fault)
	}
}

// TestFlood: a source that opens connections and sends nothing has a bounded number of them; a host at another address
// joins meanwhile.
func TestFlood(t *testing.T) {
	a, _ := fabric(t)
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for range 100 {
		c, err := net.Dial("tcp", a.address)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	k := &a.server.Count
	for deadline := time.Now().Add(10 * time.Second); k.Connections.Load()+k.RefusedConns.Load()+
		k.RefusedRate.Load() < 100; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the server does not accept them")
		}
	}
	if n := k.Connections.Load(); n > maxOfSource {
		t.Errorf("%d connections are open", n)
	}
	if k.RefusedConns.Load() == 0 {
		t.Error("none was counted as refused")
	}
	j := newJoiner(t, 2, "b1")
	from := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	j.Dial = from.DialContext
	if _, fault := j.join(t, a.address, a.token(1)); fault != "" {
		t.Error(fault)
	}
	// Silent connections end by themselves.
	for deadline := time.Now().Add(4 * helloTime); ; time.Sleep(10 * time.Millisecond) {
		a.server.mu.Lock()
		open := a.server.open
		a.server.mu.Unlock()
		if open == [2]int{} {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v silent connections stay", open)
		}
	}
}

// TestFloodOfSources: connections from many addresses that are no member's, more than there is room for and faster than
// they are taken, keep no member from its answer.
func TestFloodOfSources(t *testing.T) {
	a, s := fabric(t)
	own := netip.MustParseAddr("127.0.0.99")
	full := newSite(t, s, 1)
	full.id, full.cert = a.id, a.cert
	full.serve(func(c *ServerConfig) {
		c.Backend, c.Known = a, func(x netip.Addr) bool { return x == own }
	})
	dial := func(ip string) *net.Dialer { return &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}} }
	for i := range 20 {
		for range 20 {
			c, err := dial(fmt.Sprintf("127.0.0.%d", 10+i)).DialContext(t.Context(), "tcp", full.address)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
		}
	}
	j := newJoiner(t, 2, "b1")
	j.Dial = dial("127.0.0.9").DialContext
	if _, fault := j.join(t, full.address, a.token(1)); fault == "" {
		t.Error("there is room for strangers")
	}
	j = newJoiner(t, 3, "c1")
	j.Dial = dial(own.String()).DialContext
	if _, fault := j.join(t, full.address, a.token(1)); fault != "" {
		t.Error(fault)
	}
}

// FuzzAnswer gives a joiner any octets as an answer: it accepts none but its own certificate, and prints one line.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"certificate":"AAAA","roster":{}}`), 200)
	f.Add([]byte(`{"what":"x","why":"\u001b[2J","fix":"y"}`), 403)
	id, err := member.NewIdentity()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body []byte, status int) {
		s := &session{address: "a:1", http: &http.Transport{}}
		s.http.RegisterProtocol("https", fixed{body, status})
		var a registry.Answer
		p := s.post(context.Background(), pathJoin, struct{}{}, &a)
		if p != nil {
			if strings.ContainsAny(p.Error(), "\n\r\x1b") {
				t.Errorf("%q", p.Error())
			}
			return
		}
		if checkAnswer(&a, id, member.Request{Name: "b1", GUID: guid(2)}, member.Pin{}) == nil {
			t.Error("accepted")
		}
	})
}

// fixed answers every request.
type fixed struct {
	body   []byte
	status int
}

func (f fixed) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: f.status, Status: "x", Body: io.NopCloser(bytes.NewReader(f.body))}, nil
}

// keeper keeps the requests that it is given.
type keeper struct {
	Backend
	hash member.Key
	got  []*member.Request
}

func (k *keeper) TokenHash(context.Context, string) (member.Key, error) { return k.hash, nil }

func (k *keeper) Join(_ context.Context, q *member.Request, _ int, _ string) (*registry.Answer, error) {
	k.got = append(k.got, q)
	return nil, problem.New("cannot join the fabric", "not now", "weft join again")
}

// TestSecretForVoters: a member that is no voter never gets the secret of a token, though it proves to have its hash.
func TestSecretForVoters(t *testing.T) {
	a, s := fabric(t)
	made, _, err := a.CreateToken(t.Context(), registry.TokenSpec{Roles: member.Manager, Uses: 1, By: "root at a1"})
	if err != nil {
		t.Fatal(err)
	}
	m := newJoiner(t, 7, "m1")
	got, fault := m.join(t, a.address, made)
	if fault != "" {
		t.Fatal(fault)
	}
	token := a.token(1)
	manager := newSite(t, s, 7)
	manager.id, manager.cert = m.id, got.Certificate
	k := &keeper{hash: token.Hash()}
	manager.serve(func(c *ServerConfig) { c.Backend = k })
	_, fault = newJoiner(t, 8, "b1").join(t, manager.address, token)
	if !strings.Contains(fault, "has not the role voter") {
		t.Error(fault)
	}
	if len(k.got) != 0 {
		t.Error("a manager has the secret of a token for voters")
	}
	voter := newSite(t, s, 1)
	voter.id, voter.cert = a.id, a.cert
	voter.serve(func(c *ServerConfig) { c.Backend = k })
	if _, fault = newJoiner(t, 8, "b1").join(t, voter.address, token); !strings.Contains(fault, "not now") ||
		len(k.got) != 1 {
		t.Errorf("a voter has %d secrets, %s", len(k.got), fault)
	}
}

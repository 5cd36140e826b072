// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
)

// Bounds of the listener. A connection that does not finish its handshake in time is closed; while maxHandshakes are
// under way, the next connection waits in the kernel's queue. A source, an IPv4 address or an IPv6 /64, has at most
// maxSource of them, and all that are no address of a member have maxStrangers: what they open beyond is closed at
// once, so that neither one of them nor many keep members waiting.
const (
	handshakeTimeout = 5 * time.Second
	maxHandshakes    = 64
	maxSource        = maxHandshakes / 4
	maxStrangers     = maxHandshakes / 4 * 3
	// maxMember is how many connections one certificate's key has.
	maxMember = 64
)

// ListenerCounters count what arrives at the listener of a store.
type ListenerCounters struct {
	Connections  atomic.Uint64 // accepted
	RefusedConns atomic.Uint64 // closed: too many handshakes of their source were under way, or connections of a member
	Handshakes   atomic.Uint64 // that failed: no certificate of a member, or no answer in time
	RefusedCalls atomic.Uint64 // of members that use more of the store than one may
}

// h2 is the name of HTTP/2 in ALPN (RFC 7301), and preface how a connection of it begins without TLS (RFC 9113, 3.4).
const (
	h2      = "h2"
	preface = "PRI * HTTP/2.0"
)

// front is one listener for two protocols: gRPC of clients is HTTP/2, the messages of replicas are HTTP/1.1. With TLS
// the protocol is negotiated; without it the first octets decide.
type front struct {
	l        net.Listener
	tls      *tls.Config // nil: none
	count    *ListenerCounters
	known    func(netip.Addr) bool // addresses of members; nil: none
	rpc, web *half
	slots    chan struct{}
	work     sync.WaitGroup
	stop     context.CancelFunc
	ctx      context.Context

	mu      sync.Mutex
	sources map[netip.Prefix]int // handshakes that are under way
	strange int                  // of them those of no member's address
	members map[memberKey]int    // connections
}

// memberKey is the SHA-256 of the SubjectPublicKeyInfo of a member's certificate.
type memberKey [sha256.Size]byte

// held is a connection with a place among those of its member.
type held struct {
	net.Conn
	owed owed
	once sync.Once
	give func() // gives the place back; nil: it has none. It is set before others have the connection.
}

// Close implements net.Conn.
func (h *held) Close() error {
	h.owed.closed.Store(true)
	h.once.Do(func() {
		if h.give != nil {
			h.give()
		}
	})
	return h.Conn.Close()
}

// hold gives a connection a place, and reports whether there was one.
func (f *front) hold(h *held, s tls.ConnectionState) bool {
	if len(s.PeerCertificates) == 0 {
		return true // the configuration of TLS allows that
	}
	key := memberKey(sha256.Sum256(s.PeerCertificates[0].RawSubjectPublicKeyInfo))
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.members[key] >= maxMember {
		return false
	}
	f.members[key]++
	h.give = func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.members[key]--; f.members[key] == 0 {
			delete(f.members, key)
		}
	}
	return true
}

// newFront makes a front that counts in n. known may be nil.
func newFront(l net.Listener, c *tls.Config, known func(netip.Addr) bool, n *ListenerCounters) *front {
	f := &front{l: l, count: n, known: known, slots: make(chan struct{}, maxHandshakes), sources: map[netip.Prefix]int{},
		members: map[memberKey]int{}}
	if c != nil {
		f.tls = c.Clone()
		f.tls.NextProtos = []string{h2, "http/1.1"}
	}
	f.ctx, f.stop = context.WithCancel(context.Background())
	f.rpc, f.web = newHalf(f), newHalf(f)
	f.work.Add(1) // of serve, so that close waits for the handshakes that it still begins
	return f
}

// serve accepts connections until close. It is called once.
func (f *front) serve() error {
	defer f.work.Done()
	for {
		select {
		case f.slots <- struct{}{}:
		case <-f.ctx.Done():
			return net.ErrClosed
		}
		c, err := f.l.Accept()
		if err != nil {
			<-f.slots
			if ne, ok := err.(net.Error); ok && ne.Timeout() && f.ctx.Err() == nil {
				continue
			}
			if f.ctx.Err() != nil {
				return net.ErrClosed
			}
			// The process has no descriptor left, as a rule: others close theirs.
			select {
			case <-time.After(100 * time.Millisecond):
				continue
			case <-f.ctx.Done():
				return net.ErrClosed
			}
		}
		f.count.Connections.Add(1)
		from, strange := sourceOf(c.RemoteAddr()), !f.knows(c.RemoteAddr())
		if !f.enter(from, strange) {
			f.count.RefusedConns.Add(1)
			_ = c.Close()
			<-f.slots
			continue
		}
		f.work.Go(func() {
			defer func() { f.leave(from, strange); <-f.slots }()
			f.sort(c)
		})
	}
}

// knows reports whether an address is one of a member's.
func (f *front) knows(a net.Addr) bool {
	t, ok := a.(*net.TCPAddr)
	return ok && f.known != nil && f.known(t.AddrPort().Addr().Unmap().WithZone(""))
}

// sourceOf is the source of a connection: an IPv4 address or an IPv6 /64; the zero Prefix of another address.
func sourceOf(a net.Addr) netip.Prefix {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := t.AddrPort().Addr().Unmap().WithZone("")
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	p, _ := ip.Prefix(bits) // bits are in range
	return p
}

// enter begins a handshake of a source, and reports whether there is room for it.
func (f *front) enter(from netip.Prefix, strange bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sources[from] >= maxSource || strange && f.strange >= maxStrangers {
		return false
	}
	f.sources[from]++
	if strange {
		f.strange++
	}
	return true
}

// leave ends what enter began.
func (f *front) leave(from netip.Prefix, strange bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if strange {
		f.strange--
	}
	if f.sources[from]--; f.sources[from] == 0 {
		delete(f.sources, from)
	}
}

// sort hands a connection to the half that it is for.
func (f *front) sort(c net.Conn) {
	ctx, stop := context.WithTimeout(f.ctx, handshakeTimeout)
	defer stop()
	to := f.web
	if f.tls != nil {
		h := &held{Conn: c}
		t := tls.Server(h, f.tls)
		if t.HandshakeContext(ctx) != nil {
			f.count.Handshakes.Add(1)
			_ = c.Close() // the other end has the alert
			return
		}
		if !f.hold(h, t.ConnectionState()) {
			f.count.RefusedConns.Add(1)
			_ = t.Close()
			return
		}
		if t.ConnectionState().NegotiatedProtocol == h2 {
			to = f.rpc
		}
		c = t
	} else {
		inTime := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) }) // ends Peek
		p := &peeked{Conn: c, r: bufio.NewReaderSize(c, 64)}
		b, err := p.r.Peek(len(preface))
		if !inTime() || err != nil {
			f.count.Handshakes.Add(1)
			_ = c.Close() // it ended, or was silent
			return
		}
		if string(b) == preface {
			to = f.rpc
		}
		c = p
	}
	select {
	case to.conns <- c:
	case <-to.ctx.Done():
		_ = c.Close()
	}
}

// close ends the listener and waits for serve and its handshakes. Connections that were handed over belong to the
// servers.
func (f *front) close() {
	f.stop()
	_ = f.l.Close()
	f.rpc.Close()
	f.web.Close()
	f.work.Wait()
}

// peeked is a connection of which some octets were read.
type peeked struct {
	net.Conn
	r *bufio.Reader
}

func (p *peeked) Read(b []byte) (int, error) { return p.r.Read(b) }

// half is the listener of one protocol.
type half struct {
	f     *front
	conns chan net.Conn
	ctx   context.Context
	stop  context.CancelFunc
}

func newHalf(f *front) *half {
	h := &half{f: f, conns: make(chan net.Conn)}
	h.ctx, h.stop = context.WithCancel(f.ctx)
	return h
}

func (h *half) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.ctx.Done():
		return nil, net.ErrClosed
	}
}

func (h *half) Close() error   { h.stop(); return nil }
func (h *half) Addr() net.Addr { return h.f.l.Addr() }

// connInfo is what a call finds out about its connection.
type connInfo struct {
	credentials.TLSInfo
	conn net.Conn
}

// shaken are the credentials of connections with a completed handshake.
type shaken struct{}

func (shaken) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if t, ok := c.(*tls.Conn); ok {
		return c, connInfo{credentials.TLSInfo{State: t.ConnectionState(),
			CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}, c}, nil
	}
	return c, nil, nil
}

func (shaken) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	panic("store: credentials of a server")
}

func (shaken) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}
func (s shaken) Clone() credentials.TransportCredentials { return s }
func (shaken) OverrideServerName(string) error           { return nil }

// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"bufio"
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
)

// Bounds of the listener. A connection that does not finish its handshake in time is closed; while maxHandshakes are
// under way, the next connection waits in the kernel's queue.
const (
	handshakeTimeout = 5 * time.Second
	maxHandshakes    = 64
)

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
	rpc, web *half
	slots    chan struct{}
	work     sync.WaitGroup
	stop     context.CancelFunc
	ctx      context.Context
}

func newFront(l net.Listener, c *tls.Config) *front {
	f := &front{l: l, slots: make(chan struct{}, maxHandshakes)}
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
		f.work.Go(func() {
			defer func() { <-f.slots }()
			f.sort(c)
		})
	}
}

// sort hands a connection to the half that it is for.
func (f *front) sort(c net.Conn) {
	ctx, stop := context.WithTimeout(f.ctx, handshakeTimeout)
	defer stop()
	to := f.web
	if f.tls != nil {
		t := tls.Server(c, f.tls)
		if t.HandshakeContext(ctx) != nil {
			_ = c.Close() // the other end has the alert
			return
		}
		if t.ConnectionState().NegotiatedProtocol == h2 {
			to = f.rpc
		}
		c = t
	} else {
		_ = c.SetReadDeadline(time.Now().Add(handshakeTimeout))
		p := &peeked{Conn: c, r: bufio.NewReaderSize(c, 64)}
		b, err := p.r.Peek(len(preface))
		if err != nil {
			_ = c.Close() // it ended, or was silent
			return
		}
		_ = c.SetReadDeadline(time.Time{})
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

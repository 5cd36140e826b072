// SPDX-License-Identifier: Apache-2.0

package join

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"weft/internal/mgmt/member"
	"weft/internal/mgmt/member/registry"
	"weft/internal/mgmt/store"
	"weft/internal/proto/problem"
)

// Bounds of the server.
const (
	MaxBody      = 64 << 10
	MaxAnswer    = 32 << 20
	maxConns     = 64
	maxStrangers = maxConns / 4 * 3 // of sources that are no member's address
	maxOfSource  = 8
	helloTime    = 3 * time.Second  // of the TLS handshake, and of the headers of a request
	exchangeTime = 20 * time.Second // of a request and its answer
	idleTime     = 5 * time.Second
)

// Paths of the protocol. The number is its version: a host of another one gets a refusal, not an answer that it
// misreads.
const (
	pathOpen  = "/weft/1/open"
	pathJoin  = "/weft/1/join"
	pathRenew = "/weft/1/renew"
	// PathCommands comes before the paths of commands that members pass on to each other.
	PathCommands = "/weft/1/command"
)

// exporter is the label of the keying material that a proof is made of, in the form of RFC 5705, section 4: private
// labels begin with EXPERIMENTAL.
const exporter = "EXPERIMENTAL weft join 1"

const exportSize = 32

// Backend decides and keeps; *registry.Registry is one.
type Backend interface {
	TokenHash(ctx context.Context, id string) (member.Key, error)
	Join(ctx context.Context, q *member.Request, mtu int, host string) (*registry.Answer, error)
	Renew(ctx context.Context, c *x509.Certificate) (*registry.Answer, error)
}

var _ Backend = (*registry.Registry)(nil)

// ServerConfig is what a Server needs.
type ServerConfig struct {
	Backend Backend
	// Certificate is the member's own, with that of its CA behind it. It is called for each connection: it changes with
	// each renewal.
	Certificate func() (*tls.Certificate, error)
	// Elsewhere are the addresses of voters where this member has no key of the CA; nil: it decides itself.
	Elsewhere func() []string
	// Known reports whether an address is one of a member's: what others do does not bound its connections; nil: none.
	Known func(netip.Addr) bool
	// MTU is that of the path to the other end of a connection, 0 if unknown.
	MTU func(net.Conn) int
	Now func() time.Time // wall clock
	Log *slog.Logger
	// Commands answers below PathCommands; it verifies the certificate of each connection. nil: nothing does.
	Commands http.Handler
}

// Counters are the connections and requests of a Server.
type Counters struct {
	Connections      atomic.Uint64 // accepted
	RefusedRate      atomic.Uint64 // closed: too many attempts of their source, or of all
	RefusedConns     atomic.Uint64 // closed: too many open ones of their source, or of all
	Handshakes       atomic.Uint64 // that failed: not TLS 1.3, or no answer in time
	Opened           atomic.Uint64 // proofs given
	Joined           atomic.Uint64
	Refused          atomic.Uint64 // requests to join
	Renewed          atomic.Uint64
	RefusedRenewals  atomic.Uint64
	RefusedMalformed atomic.Uint64 // requests of another form
}

// Server answers hosts and members. Its methods may be called by several goroutines.
type Server struct {
	cfg   ServerConfig
	http  http.Server
	Count Counters

	mu    sync.Mutex        // guards what follows; it is held for no I/O
	limit [2]member.Limiter // of strangers, of members
	conns map[netip.Addr]int
	open  [2]int // in the same order
}

// class is the index of a source in the bounds: 1 for an address of a member.
func (s *Server) class(from netip.Addr) int {
	if s.cfg.Known != nil && s.cfg.Known(from) {
		return 1
	}
	return 0
}

// NewServer returns a server; Serve runs it.
func NewServer(c ServerConfig) *Server {
	s := &Server{cfg: c, conns: map[netip.Addr]int{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+pathOpen, s.serveOpen)
	mux.HandleFunc("POST "+pathJoin, s.serveJoin)
	mux.HandleFunc("POST "+pathRenew, s.serveRenew)
	if c.Commands != nil {
		mux.Handle(PathCommands+"/", http.StripPrefix(PathCommands, c.Commands))
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.Count.RefusedMalformed.Add(1)
		refuse(w, http.StatusNotFound, problem.New("cannot join the fabric",
			"this host speaks another version of the join protocol", "install the fabric's version of weft here"))
	})
	s.http = http.Server{
		Handler: mux, ReadHeaderTimeout: helloTime, ReadTimeout: exchangeTime, WriteTimeout: exchangeTime,
		IdleTimeout: idleTime, MaxHeaderBytes: 8 << 10,
		ErrorLog:     slog.NewLogLogger(counting{c.Log.Handler(), &s.Count.Handshakes}, slog.LevelDebug),
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){}, // no HTTP/2
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if t, ok := c.(*tls.Conn); ok {
				c = t.NetConn()
			}
			return context.WithValue(ctx, connKey{}, c)
		},
	}
	return s
}

type connKey struct{}

// Serve answers on l until Close, and returns why it ended.
func (s *Server) Serve(l net.Listener) error {
	err := s.http.Serve(tls.NewListener(&bounded{l, s}, &tls.Config{
		MinVersion: tls.VersionTLS13,
		ClientAuth: tls.RequestClientCert, // Renew decides about it
		NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return s.cfg.Certificate()
		},
		SessionTicketsDisabled: true, // each connection proves everything again
	}))
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Close ends all connections.
func (s *Server) Close() error { return s.http.Close() }

// bounded closes the connections that are too many, before they cost a handshake.
type bounded struct {
	net.Listener
	s *Server
}

// Accept implements net.Listener. It returns the next connection within the bounds.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := addrOf(c.RemoteAddr())
		class := b.s.class(from)
		if b.s.take(from, class) {
			return &counted{Conn: c, free: sync.OnceFunc(func() { b.s.free(from, class) })}, nil
		}
		c.Close()
	}
}

// counted gives its place back when it is closed.
type counted struct {
	net.Conn
	free func()
}

func (c *counted) Close() error {
	c.free()
	return c.Conn.Close()
}

// NetConn returns the connection below, for MTU.
func (c *counted) NetConn() net.Conn { return c.Conn }

func addrOf(a net.Addr) netip.Addr {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}

func (s *Server) take(from netip.Addr, class int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.open[0]+s.open[1] >= maxConns || class == 0 && s.open[0] >= maxStrangers || s.conns[from] >= maxOfSource:
		s.Count.RefusedConns.Add(1)
		return false
	case !s.limit[class].Allow(from, s.cfg.Now()):
		s.Count.RefusedRate.Add(1)
		return false
	}
	s.open[class]++
	s.conns[from]++
	s.Count.Connections.Add(1)
	return true
}

func (s *Server) free(from netip.Addr, class int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[class]--
	if s.conns[from]--; s.conns[from] == 0 {
		delete(s.conns, from)
	}
}

// openRequest and openAnswer are the first exchange.
type openRequest struct {
	Token string `json:"token"`
}

type openAnswer struct {
	Proof     []byte   `json:"proof,omitempty"`
	Elsewhere []string `json:"elsewhere,omitempty"` // HOST:PORT of voters
}

// elsewhere is the answer of a member without the CA's key that cannot check a token, or has no such token.
var elsewhere = problem.New("cannot join the fabric", "this member has no key of the CA, and finds no such token",
	"weft join HOST, with the whole line of weft token")

func (s *Server) serveOpen(w http.ResponseWriter, r *http.Request) {
	var q openRequest
	if !s.decode(w, r, &q) {
		return
	}
	hash, err := s.cfg.Backend.TokenHash(r.Context(), q.Token)
	if s.cfg.Elsewhere != nil {
		if list := s.cfg.Elsewhere(); len(list) > 0 {
			if err == nil { // voters are named to hosts with a token alone
				answer(w, openAnswer{Elsewhere: list[:min(len(list), maxElsewhere)]})
				return
			}
			err = elsewhere
		}
	}
	var exported []byte
	if err == nil {
		exported, err = r.TLS.ExportKeyingMaterial(exporter, nil, exportSize)
	}
	if err != nil {
		s.Count.Refused.Add(1)
		s.log(r, "join", q.Token, err)
		refuse(w, http.StatusForbidden, err)
		return
	}
	s.Count.Opened.Add(1)
	answer(w, openAnswer{Proof: member.Proof(hash, exported)})
}

func (s *Server) serveJoin(w http.ResponseWriter, r *http.Request) {
	var q member.Request
	if !s.decode(w, r, &q) {
		return
	}
	mtu, host := 0, ""
	if c, ok := r.Context().Value(connKey{}).(net.Conn); ok {
		host = addrOf(c.LocalAddr()).String()
		if k, ok := c.(*counted); ok {
			c = k.NetConn()
		}
		if s.cfg.MTU != nil {
			mtu = s.cfg.MTU(c)
		}
	}
	a, err := s.cfg.Backend.Join(r.Context(), &q, mtu, host)
	if err != nil {
		s.Count.Refused.Add(1)
		s.log(r, "join", q.Name, err)
		refuse(w, verdict(err), err)
		return
	}
	s.Count.Joined.Add(1)
	s.log(r, "join", q.Name, nil)
	answer(w, a)
}

func (s *Server) serveRenew(w http.ResponseWriter, r *http.Request) {
	if !s.decode(w, r, &struct{}{}) {
		return
	}
	if len(r.TLS.PeerCertificates) == 0 {
		s.Count.RefusedRenewals.Add(1)
		refuse(w, http.StatusForbidden, problem.New("cannot renew the certificate", "the host has shown none",
			"weft join"))
		return
	}
	a, err := s.cfg.Backend.Renew(r.Context(), r.TLS.PeerCertificates[0])
	if err != nil {
		s.Count.RefusedRenewals.Add(1)
		s.log(r, "renew", r.TLS.PeerCertificates[0].Subject.CommonName, err)
		refuse(w, verdict(err), err)
		return
	}
	s.Count.Renewed.Add(1)
	answer(w, a)
}

// log notes what a host did; the secret of a token is never in it.
func (s *Server) log(r *http.Request, what, name string, err error) {
	name = name[:min(len(name), member.MaxName)]
	if err != nil {
		s.cfg.Log.Warn(what+" refused", "from", r.RemoteAddr, "name", name, "err", err)
		return
	}
	s.cfg.Log.Info(what, "from", r.RemoteAddr, "name", name)
}

// decode reads a request; false means that it was answered.
func (s *Server) decode(w http.ResponseWriter, r *http.Request, v any) bool {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	if err == nil {
		err = decodeOne(b, v)
	}
	if err != nil {
		s.Count.RefusedMalformed.Add(1)
		refuse(w, http.StatusBadRequest, problem.New("cannot join the fabric", "the request is malformed",
			"install the fabric's version of weft here"))
		return false
	}
	return true
}

// decodeOne reads exactly one JSON value. Unknown fields are allowed: a newer host may send more.
func decodeOne(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one value")
	}
	return nil
}

// verdict is the status of an error: a refusal, or that this member can decide nothing at present, for want of the
// store or of the CA's key. What was requested may have been done then.
func verdict(err error) int {
	for _, why := range []error{store.ErrUnavailable, store.ErrFull, registry.ErrNoKey, context.DeadlineExceeded,
		context.Canceled} {
		if errors.Is(err, why) {
			return http.StatusServiceUnavailable
		}
	}
	return http.StatusForbidden
}

// refusal is an error on the wire.
type refusal struct {
	What string `json:"what"`
	Why  string `json:"why"`
	Fix  string `json:"fix"`
}

func refuse(w http.ResponseWriter, status int, err error) {
	p := problem.Of("cannot join the fabric", err)
	send(w, status, refusal{p.What, p.Why, p.Fix})
}

func answer(w http.ResponseWriter, v any) { send(w, http.StatusOK, v) }

func send(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil || len(b) > MaxAnswer {
		status, b = http.StatusInternalServerError,
			[]byte(`{"what":"cannot join the fabric","why":"the answer does not fit"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(b) // a host that left is no error
}

// counting counts what net/http logs: failed handshakes, mostly.
type counting struct {
	slog.Handler
	n *atomic.Uint64
}

func (c counting) Enabled(context.Context, slog.Level) bool { return true }

func (c counting) Handle(ctx context.Context, r slog.Record) error {
	c.n.Add(1)
	if !c.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return c.Handler.Handle(ctx, r)
}

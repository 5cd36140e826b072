// SPDX-License-Identifier: Apache-2.0

package netstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Limits bound a service. Zero values mean the defaults.
type Limits struct {
	Conns int           // connections, or peers of datagrams, at a time: 256
	Dial  time.Duration // for connecting: 10 s
	// Idle is how long a connection may carry nothing: 10 minutes, or one
	// minute for datagrams.
	Idle time.Duration
}

func (l Limits) orDefaults(idle time.Duration) Limits {
	if l.Conns == 0 {
		l.Conns = 256
	}
	if l.Dial == 0 {
		l.Dial = 10 * time.Second
	}
	if l.Idle == 0 {
		l.Idle = idle
	}
	return l
}

func (l Limits) validate() error {
	if l.Conns < 0 || l.Dial < 0 || l.Idle < 0 {
		return fmt.Errorf("limits %+v: want nothing negative", l)
	}
	return nil
}

const (
	idleTCP = 10 * time.Minute
	idleUDP = time.Minute
	// chunk is how much a connection moves at once, and the longest datagram.
	chunk = 64 << 10
)

var chunks = sync.Pool{New: func() any { b := make([]byte, chunk); return &b }}

// ServiceCounters count the work of a service.
type ServiceCounters struct {
	Active   atomic.Int64  // connections, or peers of datagrams, now
	Accepted atomic.Uint64 // in all
	Refused  atomic.Uint64 // beyond Limits.Conns, or by a client that broke the protocol
	Failed   atomic.Uint64 // the other side could not be reached
	Idle     atomic.Uint64 // ended by Limits.Idle
	Dropped  atomic.Uint64 // datagrams that could not be passed on
	Out      atomic.Uint64 // octets from the side that connected
	In       atomic.Uint64 // octets to the side that connected
}

// Service is a port forward or a proxy that runs.
type Service struct {
	Counters ServiceCounters

	name   string
	limits Limits
	addr   net.Addr
	h      *host
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	slots  chan struct{} // one element for each connection
}

// Name describes the service to people.
func (s *Service) Name() string { return s.name }

// Addr is where it listens.
func (s *Service) Addr() net.Addr { return s.addr }

// Close ends the service and its connections and waits for them.
func (s *Service) Close() error {
	s.cancel()
	s.wg.Wait()
	s.h.services.Lock()
	defer s.h.services.Unlock()
	delete(s.h.services.open, s)
	return nil
}

// start makes a service of the device that runs the loop run, and closes listening at its end.
func (h *host) start(name string, limits Limits, at net.Addr, listening io.Closer, run func(*Service)) (*Service,
	error) {
	s := &Service{name: name, limits: limits, addr: at, h: h, slots: make(chan struct{}, limits.Conns)}
	s.ctx, s.cancel = context.WithCancel(h.ctx)
	h.services.Lock()
	defer h.services.Unlock()
	if h.services.closed {
		s.cancel()
		listening.Close()
		return nil, fmt.Errorf("%s: %w", name, os.ErrClosed)
	}
	h.services.open[s] = struct{}{}
	s.wg.Go(func() {
		stop := context.AfterFunc(s.ctx, func() { listening.Close() })
		run(s)
		if stop() {
			listening.Close()
		}
	})
	return s, nil
}

// enter reserves a place for a connection, if there is one.
func (s *Service) enter() bool {
	select {
	case s.slots <- struct{}{}:
		s.Counters.Accepted.Add(1)
		s.Counters.Active.Add(1)
		return true
	default:
		s.Counters.Refused.Add(1)
		return false
	}
}

func (s *Service) leave() {
	s.Counters.Active.Add(-1)
	<-s.slots
}

// accept serves each connection of l on a goroutine of its own, until l or the
// service ends.
func (s *Service) accept(l net.Listener, serve func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			// As net/http does: too many descriptors pass, an end does not.
			var temporary interface{ Temporary() bool }
			if s.ctx.Err() != nil || !errors.As(err, &temporary) || !temporary.Temporary() {
				return
			}
			select {
			case <-s.ctx.Done():
				return
			case <-time.After(50 * time.Millisecond):
				continue
			}
		}
		if !s.enter() {
			c.Close()
			continue
		}
		s.wg.Go(func() {
			defer s.leave()
			defer c.Close()
			serve(c)
		})
	}
}

// watchdog calls end when nothing has been seen for the idle time. stop ends
// it.
type watchdog struct {
	last  atomic.Int64 // octets or packets so far
	timer *time.Timer
}

func (s *Service) watch(end func()) *watchdog {
	w := &watchdog{}
	seen := int64(0)
	var mu sync.Mutex // orders the timer's function after the assignment below
	mu.Lock()
	defer mu.Unlock()
	w.timer = time.AfterFunc(s.limits.Idle, func() {
		mu.Lock()
		defer mu.Unlock()
		if n := w.last.Load(); n != seen {
			seen = n
			w.timer.Reset(s.limits.Idle)
			return
		}
		s.Counters.Idle.Add(1)
		end()
	})
	return w
}

// pipe carries octets between client and server, both ways, until both have
// ended, one has failed, nothing came for the idle time, or the service ends.
// It closes both.
func (s *Service) pipe(client, server net.Conn) {
	end := func() { client.Close(); server.Close() }
	defer end()
	defer context.AfterFunc(s.ctx, end)()
	w := s.watch(end)
	defer w.timer.Stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if !s.copy(server, client, &s.Counters.Out, w) {
			end()
		}
	}()
	if !s.copy(client, server, &s.Counters.In, w) {
		end()
	}
	<-done
}

// copy carries one direction, and its end. It reports whether there was no
// failure.
func (s *Service) copy(to, from net.Conn, count *atomic.Uint64, w *watchdog) bool {
	buf := chunks.Get().(*[]byte)
	defer chunks.Put(buf)
	for {
		n, err := from.Read(*buf)
		if n > 0 {
			w.last.Add(int64(n))
			if _, err := to.Write((*buf)[:n]); err != nil {
				return false
			}
			count.Add(uint64(n))
			w.last.Add(1) // a slow receiver is not idle
		}
		if err == io.EOF {
			half, ok := to.(interface{ CloseWrite() error })
			return ok && half.CloseWrite() == nil
		}
		if err != nil {
			return false
		}
	}
}

// Forward is a port that leads to another network: that of the host to the
// fabric, or with Inward the other way.
type Forward struct {
	Network string // "tcp" or "udp"
	Listen  netip.AddrPort
	To      netip.AddrPort
	Inward  bool
	Limits  Limits
}

// String is the forward for people.
func (f Forward) String() string {
	if f.Inward {
		return fmt.Sprintf("%s fabric %s to host %s", f.Network, f.Listen, f.To)
	}
	return fmt.Sprintf("%s host %s to fabric %s", f.Network, f.Listen, f.To)
}

// Validate reports every fault of f.
func (f Forward) Validate() error {
	var errs []error
	if f.Network != "tcp" && f.Network != "udp" {
		errs = append(errs, fmt.Errorf("network %q: want tcp or udp", f.Network))
	}
	if !f.Listen.IsValid() {
		errs = append(errs, errors.New("no address to listen at"))
	}
	if !f.To.IsValid() || f.To.Port() == 0 || f.To.Addr().IsUnspecified() {
		errs = append(errs, fmt.Errorf("%s cannot be connected to", f.To))
	}
	return errors.Join(append(errs, f.Limits.validate())...)
}

// Forward starts a port forward, which listens when the call returns.
func (h *host) Forward(f Forward) (*Service, error) {
	if err := f.Validate(); err != nil {
		return nil, fmt.Errorf("forward %s: %w", f, err)
	}
	if f.Network == "tcp" {
		return h.forwardTCP(f)
	}
	return h.forwardUDP(f)
}

func (h *host) forwardTCP(f Forward) (*Service, error) {
	listen := func() (net.Listener, error) { return new(net.ListenConfig).Listen(h.ctx, "tcp", f.Listen.String()) }
	dial := h.DialTCP
	if f.Inward {
		listen = func() (net.Listener, error) { return h.ListenTCP(f.Listen) }
		dial = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", to.String())
		}
	}
	l, err := listen()
	if err != nil {
		return nil, fmt.Errorf("forward %s: %w", f, err)
	}
	return h.start(f.String(), f.Limits.orDefaults(idleTCP), l.Addr(), l, func(s *Service) {
		s.accept(l, func(client net.Conn) {
			ctx, cancel := context.WithTimeout(s.ctx, s.limits.Dial)
			server, err := dial(ctx, f.To)
			cancel()
			if err != nil {
				s.Counters.Failed.Add(1)
				return
			}
			s.pipe(client, server)
		})
	})
}

func (h *host) forwardUDP(f Forward) (*Service, error) {
	listen := func() (net.PacketConn, error) {
		return new(net.ListenConfig).ListenPacket(h.ctx, "udp", f.Listen.String())
	}
	dial := h.DialUDP
	if f.Inward {
		listen = func() (net.PacketConn, error) { return h.ListenUDP(f.Listen) }
		dial = func(to netip.AddrPort) (net.Conn, error) { return net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to)) }
	}
	l, err := listen()
	if err != nil {
		return nil, fmt.Errorf("forward %s: %w", f, err)
	}
	return h.start(f.String(), f.Limits.orDefaults(idleUDP), l.LocalAddr(), l,
		func(s *Service) { s.datagrams(l, f.To, dial) })
}

// peers are the senders of datagrams that have a socket to the other side.
type peers struct {
	sync.Mutex
	open map[netip.AddrPort]*peer
}

type peer struct {
	net.Conn
	dog *watchdog
}

// datagrams carries datagrams of l to an address, and the answers back: each
// sender has a socket of its own there until it has been idle.
func (s *Service) datagrams(l net.PacketConn, to netip.AddrPort, dial func(netip.AddrPort) (net.Conn, error)) {
	all := peers{open: map[netip.AddrPort]*peer{}}
	buf := make([]byte, chunk)
	for {
		n, addr, err := l.ReadFrom(buf)
		if err != nil {
			if s.ctx.Err() == nil && !errors.Is(err, net.ErrClosed) && transient(err) {
				continue
			}
			return
		}
		from := addr.(*net.UDPAddr).AddrPort()
		all.Lock()
		p := all.open[from]
		all.Unlock()
		if p == nil {
			if p = s.newPeer(l, addr, from, to, dial, &all); p == nil {
				continue
			}
		}
		p.dog.last.Add(1)
		if _, err := p.Write(buf[:n]); err != nil {
			s.Counters.Dropped.Add(1)
			continue
		}
		s.Counters.Out.Add(uint64(n))
	}
}

// newPeer makes a socket for a new sender, or returns nil.
func (s *Service) newPeer(l net.PacketConn, addr net.Addr, from, to netip.AddrPort,
	dial func(netip.AddrPort) (net.Conn, error), all *peers) *peer {
	if !s.enter() {
		return nil
	}
	c, err := dial(to)
	if err != nil {
		s.Counters.Failed.Add(1)
		s.leave()
		return nil
	}
	p := &peer{Conn: c}
	p.dog = s.watch(func() { c.Close() })
	all.Lock()
	all.open[from] = p
	all.Unlock()
	s.wg.Go(func() {
		defer s.leave()
		defer func() {
			all.Lock()
			delete(all.open, from)
			all.Unlock()
			p.dog.timer.Stop()
			c.Close()
		}()
		defer context.AfterFunc(s.ctx, func() { c.Close() })()
		back := chunks.Get().(*[]byte)
		defer chunks.Put(back)
		for {
			n, err := c.Read(*back)
			if err != nil {
				if s.ctx.Err() == nil && transient(err) {
					continue
				}
				return
			}
			p.dog.last.Add(1)
			if _, err := l.WriteTo((*back)[:n], addr); err != nil {
				s.Counters.Dropped.Add(1)
				continue
			}
			s.Counters.In.Add(uint64(n))
		}
	})
	return p
}

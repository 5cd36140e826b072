// SPDX-License-Identifier: Apache-2.0

package netstack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// SOCKS is a proxy by RFC 1928 for programs of the host. CONNECT and UDP
// ASSOCIATE lead to addresses of the fabric, BIND is refused.
type SOCKS struct {
	Listen netip.AddrPort
	// Resolve, unless nil, finds the addresses of names. Without it a name is
	// refused, but for one that is an address in text.
	Resolve func(ctx context.Context, name string) ([]netip.Addr, error)
	Limits  Limits
}

// Replies (RFC 1928 §6).
const (
	replyOK          = 0
	replyFailure     = 1
	replyNetUnreach  = 3
	replyHostUnreach = 4
	replyRefused     = 5
	replyTTL         = 6
	replyCommand     = 7
	replyAddress     = 8
)

// Values of RFC 1928 §3 to §5.
const (
	socks5         = 5
	methodNone     = 0
	methodNoneGood = 0xff
	cmdConnect     = 1
	cmdAssociate   = 3
	addrIPv4       = 1
	addrName       = 3
	addrIPv6       = 4
)

// greeting is the time that a client has for its request.
const greeting = 10 * time.Second

// SOCKS starts a proxy, which listens when the call returns.
func (h *host) SOCKS(c SOCKS) (*Service, error) {
	name := fmt.Sprintf("socks host %s", c.Listen)
	if !c.Listen.IsValid() {
		return nil, fmt.Errorf("%s: no address to listen at", name)
	}
	if err := c.Limits.validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	l, err := new(net.ListenConfig).Listen(h.ctx, "tcp", c.Listen.String())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return h.start(name, c.Limits.orDefaults(idleTCP), l.Addr(), l, func(s *Service) {
		s.accept(l, func(client net.Conn) { (&session{s, c.Resolve, client}).run() })
	})
}

// session is a client of the proxy.
type session struct {
	*Service
	resolve func(context.Context, string) ([]netip.Addr, error)
	client  net.Conn
}

// errReply is a failure with the reply for it.
type errReply byte

func (e errReply) Error() string { return fmt.Sprintf("SOCKS reply %d", byte(e)) }

func (s *session) run() {
	_ = s.client.SetDeadline(time.Now().Add(greeting))
	stop := context.AfterFunc(s.ctx, func() { s.client.Close() })
	defer stop()
	if err := s.method(); err != nil {
		s.Counters.Refused.Add(1)
		return
	}
	var head [3]byte // version, command, reserved
	if _, err := io.ReadFull(s.client, head[:]); err != nil || head[0] != socks5 {
		s.Counters.Refused.Add(1)
		return
	}
	to, name, err := readAddress(s.client)
	if head[1] != cmdConnect && head[1] != cmdAssociate {
		err = errReply(replyCommand)
	}
	var reply errReply
	switch {
	case errors.As(err, &reply):
		s.Counters.Refused.Add(1)
		s.reply(byte(reply), netip.AddrPort{})
		return
	case err != nil:
		s.Counters.Refused.Add(1)
		return
	}
	_ = s.client.SetDeadline(time.Time{})
	if head[1] == cmdConnect {
		s.connect(to, name)
	} else {
		s.associate(to)
	}
}

// method agrees on no authentication (RFC 1928 §3).
func (s *session) method() error {
	var head [2]byte
	if _, err := io.ReadFull(s.client, head[:]); err != nil {
		return err
	}
	if head[0] != socks5 {
		return fmt.Errorf("version %d", head[0])
	}
	methods := make([]byte, head[1])
	if _, err := io.ReadFull(s.client, methods); err != nil {
		return err
	}
	for _, m := range methods {
		if m == methodNone {
			_, err := s.client.Write([]byte{socks5, methodNone})
			return err
		}
	}
	_, err := s.client.Write([]byte{socks5, methodNoneGood})
	return errors.Join(errors.New("no method in common"), err)
}

// readAddress reads type, address and port. The address is a name where that
// is not empty.
func readAddress(r io.Reader) (to netip.AddrPort, name string, err error) {
	var b [256 + 2]byte
	if _, err := io.ReadFull(r, b[:1]); err != nil {
		return to, "", err
	}
	n := 0
	switch b[0] {
	case addrIPv4:
		n = 4
	case addrIPv6:
		n = 16
	case addrName:
		if _, err := io.ReadFull(r, b[:1]); err != nil {
			return to, "", err
		}
		if n = int(b[0]); n == 0 {
			return to, "", errReply(replyFailure)
		}
		if _, err := io.ReadFull(r, b[:n+2]); err != nil {
			return to, "", err
		}
		port := binary.BigEndian.Uint16(b[n:])
		if a, err := netip.ParseAddr(string(b[:n])); err == nil {
			return netip.AddrPortFrom(a.Unmap(), port), "", nil
		}
		return netip.AddrPortFrom(netip.Addr{}, port), string(b[:n]), nil
	default:
		return to, "", errReply(replyAddress)
	}
	if _, err := io.ReadFull(r, b[:n+2]); err != nil {
		return to, "", err
	}
	a, _ := netip.AddrFromSlice(b[:n])
	return netip.AddrPortFrom(a.Unmap(), binary.BigEndian.Uint16(b[n:])), "", nil
}

// appendAddress writes what readAddress reads.
func appendAddress(b []byte, a netip.AddrPort) []byte {
	ip := a.Addr().Unmap()
	switch {
	case !ip.IsValid():
		b = append(b, addrIPv4, 0, 0, 0, 0)
	case ip.Is4():
		b = append(append(b, addrIPv4), ip.AsSlice()...)
	default:
		b = append(append(b, addrIPv6), ip.AsSlice()...)
	}
	return binary.BigEndian.AppendUint16(b, a.Port())
}

// reply answers a request, with the address that stands for it.
func (s *session) reply(code byte, bound netip.AddrPort) bool {
	_, err := s.client.Write(appendAddress([]byte{socks5, code, 0}, bound))
	return err == nil
}

// replyFor is the reply for a failure to connect.
func replyFor(err error) byte {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return replyRefused
	case errors.Is(err, syscall.ENETUNREACH):
		return replyNetUnreach
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.EHOSTDOWN):
		return replyHostUnreach
	case errors.Is(err, syscall.ETIMEDOUT), errors.Is(err, context.DeadlineExceeded):
		return replyTTL
	}
	var reply errReply
	if errors.As(err, &reply) {
		return byte(reply)
	}
	return replyFailure
}

// maxAnswers is how many addresses of a name are tried.
const maxAnswers = 8

// dial connects to an address, or to the first of a name's that answers.
func (s *session) dial(to netip.AddrPort, name string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(s.ctx, s.limits.Dial)
	defer cancel()
	addrs := []netip.Addr{to.Addr()}
	if name != "" {
		if s.resolve == nil {
			return nil, errReply(replyAddress)
		}
		var err error
		if addrs, err = s.resolve(ctx, name); err != nil || len(addrs) == 0 {
			return nil, errors.Join(errReply(replyHostUnreach), err)
		}
		addrs = addrs[:min(len(addrs), maxAnswers)]
	}
	var first error
	for _, a := range addrs {
		c, err := s.h.DialTCP(ctx, netip.AddrPortFrom(a, to.Port()))
		if err == nil {
			return c, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

func (s *session) connect(to netip.AddrPort, name string) {
	server, err := s.dial(to, name)
	if err != nil {
		s.Counters.Failed.Add(1)
		s.reply(replyFor(err), netip.AddrPort{})
		return
	}
	if local, ok := server.LocalAddr().(*net.TCPAddr); !ok || !s.reply(replyOK, local.AddrPort()) {
		server.Close()
		return
	}
	s.pipe(s.client, server)
}

// associate relays datagrams until the client's connection ends, or nothing has passed for the idle time (RFC 1928 §7).
// from is the address from which the client announced to send; parts of it may be zero.
func (s *session) associate(from netip.AddrPort) {
	control, _ := s.client.LocalAddr().(*net.TCPAddr)
	client, _ := s.client.RemoteAddr().(*net.TCPAddr)
	host, err := net.ListenUDP("udp", &net.UDPAddr{IP: control.IP, Zone: control.Zone})
	if err != nil {
		s.Counters.Failed.Add(1)
		s.reply(replyFailure, netip.AddrPort{})
		return
	}
	defer host.Close()
	fabric, err := s.h.ListenUDP(netip.AddrPort{})
	if err != nil {
		s.Counters.Failed.Add(1)
		s.reply(replyFor(err), netip.AddrPort{})
		return
	}
	defer fabric.Close()
	end := func() { s.client.Close(); host.Close(); fabric.Close() }
	defer context.AfterFunc(s.ctx, end)()
	dog := s.watch(end)
	defer dog.timer.Stop()
	if !s.reply(replyOK, host.LocalAddr().(*net.UDPAddr).AddrPort()) {
		return
	}
	r := &relay{Service: s.Service, host: host, fabric: fabric, dog: dog, ip: client.AddrPort().Addr().Unmap()}
	if from.Port() != 0 {
		p := netip.AddrPortFrom(r.ip, from.Port())
		r.client.Store(&p)
	}
	done := make(chan struct{}, 2)
	go func() { defer func() { done <- struct{}{} }(); r.out() }()
	go func() { defer func() { done <- struct{}{} }(); r.back() }()
	// Nothing more is to come by the connection but its end.
	_, _ = io.Copy(io.Discard, s.client)
	end()
	<-done
	<-done
}

// relay is an association.
type relay struct {
	*Service
	host   *net.UDPConn
	fabric net.PacketConn
	dog    *watchdog
	ip     netip.Addr                     // the host of the connection: only it may send
	client atomic.Pointer[netip.AddrPort] // from where, once known
}

// out carries datagrams of the client.
func (r *relay) out() {
	buf := make([]byte, chunk)
	for {
		n, from, err := r.host.ReadFromUDPAddrPort(buf)
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue
		}
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		known := r.client.Load()
		to, data, ok := parseDatagram(buf[:n])
		if from.Addr() != r.ip || known != nil && *known != from || !ok {
			r.Counters.Dropped.Add(1)
			continue
		}
		if known == nil {
			r.client.Store(&from)
		}
		r.dog.last.Add(1)
		if _, err := r.fabric.WriteTo(data, net.UDPAddrFromAddrPort(to)); err != nil {
			r.Counters.Dropped.Add(1)
			continue
		}
		r.Counters.Out.Add(uint64(len(data)))
	}
}

// back carries datagrams to the client.
func (r *relay) back() {
	const room = 3 + 1 + 16 + 2
	buf := make([]byte, room+chunk)
	for {
		n, addr, err := r.fabric.ReadFrom(buf[room:])
		if err != nil {
			if transient(err) {
				continue
			}
			return
		}
		client := r.client.Load()
		from, ok := addr.(*net.UDPAddr)
		if client == nil || !ok {
			r.Counters.Dropped.Add(1)
			continue
		}
		r.dog.last.Add(1)
		var b [room]byte
		head := appendAddress(b[:3], from.AddrPort()) // reserved, not a fragment
		p := buf[room-len(head) : room+n]
		copy(p, head)
		if _, err := r.host.WriteToUDPAddrPort(p, *client); err != nil {
			r.Counters.Dropped.Add(1)
			continue
		}
		r.Counters.In.Add(uint64(n))
	}
}

// parseDatagram splits a datagram of a client (RFC 1928 §7). Names and
// fragments are refused.
func parseDatagram(b []byte) (to netip.AddrPort, data []byte, ok bool) {
	n := 0
	switch {
	case len(b) < 4 || b[2] != 0:
		return to, nil, false
	case b[3] == addrIPv4:
		n = 4
	case b[3] == addrIPv6:
		n = 16
	default:
		return to, nil, false
	}
	if len(b) < 4+n+2 {
		return to, nil, false
	}
	a, _ := netip.AddrFromSlice(b[4 : 4+n])
	to = netip.AddrPortFrom(a.Unmap(), binary.BigEndian.Uint16(b[4+n:]))
	return to, b[4+n+2:], to.Port() != 0
}

// transient reports whether a datagram socket that failed so goes on: an ICMP
// error about an earlier datagram shows in a later call.
func transient(err error) bool {
	err = named(err)
	return !errors.Is(err, net.ErrClosed) && !errors.Is(err, os.ErrClosed) && !errors.Is(err, io.EOF) &&
		(errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EHOSTUNREACH) ||
			errors.Is(err, syscall.ENETUNREACH))
}

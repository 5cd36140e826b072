// SPDX-License-Identifier: Apache-2.0

package netstack

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// errnos are the stack's errors as those of a system call, by which callers
// compare them.
var errnos = map[string]syscall.Errno{
	(&tcpip.ErrConnectionRefused{}).String():  syscall.ECONNREFUSED,
	(&tcpip.ErrConnectionReset{}).String():    syscall.ECONNRESET,
	(&tcpip.ErrConnectionAborted{}).String():  syscall.ECONNABORTED,
	(&tcpip.ErrNetworkUnreachable{}).String(): syscall.ENETUNREACH,
	(&tcpip.ErrHostUnreachable{}).String():    syscall.EHOSTUNREACH,
	(&tcpip.ErrHostDown{}).String():           syscall.EHOSTDOWN,
	(&tcpip.ErrTimeout{}).String():            syscall.ETIMEDOUT,
	(&tcpip.ErrPortInUse{}).String():          syscall.EADDRINUSE,
	(&tcpip.ErrBadLocalAddress{}).String():    syscall.EADDRNOTAVAIL,
	(&tcpip.ErrMessageTooLong{}).String():     syscall.EMSGSIZE,
	(&tcpip.ErrNoBufferSpace{}).String():      syscall.ENOBUFS,
}

// named adds to an error of the stack, which is text only, its errno.
func named(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		text = op.Err.Error()
	}
	for s, no := range errnos {
		if text == s || strings.HasSuffix(text, ": "+s) {
			return fmt.Errorf("%w: %w", err, no)
		}
	}
	return err
}

func full(a netip.AddrPort) (tcpip.FullAddress, tcpip.NetworkProtocolNumber) {
	f := tcpip.FullAddress{Port: a.Port()}
	addr := a.Addr().Unmap().WithZone("")
	if addr.IsLinkLocalUnicast() || addr.IsMulticast() {
		f.NIC = nic
	}
	switch {
	case !addr.IsValid():
		return f, ipv6.ProtocolNumber // both families
	case !addr.IsUnspecified():
		f.Addr = tcpip.AddrFromSlice(addr.AsSlice())
	}
	return f, protocol(addr)
}

// tcpConn and udpConn end pending reads and writes when they are closed, which
// gonet's leave waiting in some states.
type tcpConn struct{ *gonet.TCPConn }

func (c tcpConn) Close() error {
	_ = c.SetDeadline(time.Unix(1, 0))
	return c.TCPConn.Close()
}

type udpConn struct{ *gonet.UDPConn }

func (c udpConn) Close() error {
	_ = c.SetDeadline(time.Unix(1, 0))
	return c.UDPConn.Close()
}

// DialTCP connects to an address of the fabric. Errors satisfy errors.Is with
// the errno of connect(2).
func (h *host) DialTCP(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	f, proto := full(to)
	c, err := gonet.DialContextTCP(ctx, h.stack, f, proto)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", to, named(err))
	}
	return tcpConn{c}, nil
}

// listener ends Accept when it is closed.
type listener struct{ *gonet.TCPListener }

func (l listener) Accept() (net.Conn, error) {
	c, err := l.TCPListener.Accept()
	if err != nil {
		return nil, err
	}
	return tcpConn{c.(*gonet.TCPConn)}, nil
}

func (l listener) Close() error {
	l.Shutdown()
	return l.TCPListener.Close()
}

// ListenTCP listens at an address of the link. An invalid address means all of
// both families, an unspecified one all of its family.
func (h *host) ListenTCP(at netip.AddrPort) (net.Listener, error) {
	f, proto := full(at)
	l, err := gonet.ListenTCP(h.stack, f, proto)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", at, named(err))
	}
	return listener{l}, nil
}

// DialUDP makes a socket that exchanges datagrams with one address.
func (h *host) DialUDP(to netip.AddrPort) (net.Conn, error) {
	f, proto := full(to)
	c, err := h.socketUDP(proto, func(ep tcpip.Endpoint) tcpip.Error { return ep.Connect(f) })
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", to, err)
	}
	return c, nil
}

// ListenUDP makes a socket for datagrams to and from any address. Addresses are as for ListenTCP.
func (h *host) ListenUDP(at netip.AddrPort) (net.PacketConn, error) {
	f, proto := full(at)
	c, err := h.socketUDP(proto, func(ep tcpip.Endpoint) tcpip.Error { return ep.Bind(f) })
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", at, err)
	}
	return c, nil
}

// socketUDP makes a socket that may send to broadcast addresses.
func (h *host) socketUDP(proto tcpip.NetworkProtocolNumber, start func(tcpip.Endpoint) tcpip.Error) (udpConn, error) {
	var wq waiter.Queue
	ep, err := h.stack.NewEndpoint(udp.ProtocolNumber, proto, &wq)
	if err != nil {
		return udpConn{}, named(errors.New(err.String()))
	}
	ep.SocketOptions().SetBroadcast(true)
	if err := start(ep); err != nil {
		ep.Close()
		return udpConn{}, named(errors.New(err.String()))
	}
	return udpConn{gonet.NewUDPConn(&wq, ep)}, nil
}

// JoinGroup makes the stack a member of a group, which it reports to the link
// by IGMP or MLD, and again when the carrier comes. Calls are counted.
func (h *host) JoinGroup(group netip.Addr) error {
	h.groups.Lock()
	defer h.groups.Unlock()
	if err := h.stack.JoinGroup(protocol(group), nic, tcpip.AddrFromSlice(group.AsSlice())); err != nil {
		return fmt.Errorf("join %s: %s", group, err)
	}
	h.groups.joined[group]++
	return nil
}

// LeaveGroup undoes one JoinGroup.
func (h *host) LeaveGroup(group netip.Addr) error {
	h.groups.Lock()
	defer h.groups.Unlock()
	if h.groups.joined[group] == 0 {
		return fmt.Errorf("leave %s: not joined", group)
	}
	if err := h.stack.LeaveGroup(protocol(group), nic, tcpip.AddrFromSlice(group.AsSlice())); err != nil {
		return fmt.Errorf("leave %s: %s", group, err)
	}
	if h.groups.joined[group]--; h.groups.joined[group] == 0 {
		delete(h.groups.joined, group)
	}
	return nil
}

// rejoinGroups reports groups again: reports that were made without carrier
// are lost.
func (h *host) rejoinGroups() {
	h.groups.Lock()
	defer h.groups.Unlock()
	for group, n := range h.groups.joined {
		a := tcpip.AddrFromSlice(group.AsSlice())
		// Neither fails for a group that was joined so before.
		for range n {
			_ = h.stack.LeaveGroup(protocol(group), nic, a)
		}
		for range n {
			_ = h.stack.JoinGroup(protocol(group), nic, a)
		}
	}
}

// Ping sends one echo request with size octets of payload and waits for its
// answer, the time until which it returns.
func (h *host) Ping(ctx context.Context, to netip.Addr, size int) (time.Duration, error) {
	rtt, err := h.ping(ctx, to, size)
	if err != nil {
		return 0, fmt.Errorf("ping %s: %w", to, err)
	}
	return rtt, nil
}

func (h *host) ping(ctx context.Context, to netip.Addr, size int) (time.Duration, error) {
	f, proto := full(netip.AddrPortFrom(to, 0))
	transport, head, answer := icmp.ProtocolNumber4, uint8(header.ICMPv4Echo), uint8(header.ICMPv4EchoReply)
	if proto == ipv6.ProtocolNumber {
		transport, head, answer = icmp.ProtocolNumber6, uint8(header.ICMPv6EchoRequest), uint8(header.ICMPv6EchoReply)
	}
	var wq waiter.Queue
	ep, terr := h.stack.NewEndpoint(transport, proto, &wq)
	if terr != nil {
		return 0, named(errors.New(terr.String()))
	}
	defer ep.Close()
	if terr := ep.Connect(f); terr != nil {
		return 0, named(errors.New(terr.String()))
	}
	entry, readable := waiter.NewChannelEntry(waiter.ReadableEvents | waiter.EventErr | waiter.EventHUp)
	wq.EventRegister(&entry)
	defer wq.EventUnregister(&entry)

	// The stack sets identifier and checksum.
	const seq = 1
	msg := make([]byte, header.ICMPv4MinimumSize+size)
	msg[0] = head
	binary.BigEndian.PutUint16(msg[6:], seq)
	for i := range msg[8:] {
		msg[8+i] = byte(i)
	}
	start := time.Now()
	if _, terr := ep.Write(bytes.NewReader(msg), tcpip.WriteOptions{}); terr != nil {
		return 0, named(errors.New(terr.String()))
	}
	for {
		var got bytes.Buffer
		_, terr := ep.Read(&got, tcpip.ReadOptions{})
		switch terr.(type) {
		case nil:
			if b := got.Bytes(); len(b) == len(msg) && b[0] == answer && bytes.Equal(b[6:], msg[6:]) {
				return time.Since(start), nil
			}
			continue
		case *tcpip.ErrWouldBlock:
		default:
			return 0, named(errors.New(terr.String()))
		}
		if terr := ep.LastError(); terr != nil {
			return 0, named(errors.New(terr.String()))
		}
		select {
		case <-readable:
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-h.ctx.Done():
			return 0, net.ErrClosed
		}
	}
}

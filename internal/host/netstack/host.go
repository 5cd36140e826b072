// SPDX-License-Identifier: Apache-2.0

package netstack

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

// host is a stack with one interface, without regard to what is below that: connections,
// groups and services, which Device and Ether have in common.
type host struct {
	plan  plan
	stack *stack.Stack

	ctx    context.Context // ends with the device; its services watch it
	cancel context.CancelFunc

	groups struct {
		sync.Mutex // guards what follows
		joined     map[netip.Addr]int
	}

	services struct {
		sync.Mutex // guards what follows
		open       map[*Service]struct{}
		closed     bool
	}
}

// plan is how the stack is made.
type plan struct {
	name      string
	v6        bool // there is IPv6 (RFC 8200 §5)
	linkLocal netip.Addr
	addrs     []netip.Prefix
	routes    []Route
}

// open makes the stack over an interface.
func (h *host) open(p plan, ep stack.LinkEndpoint, more ...stack.NetworkProtocolFactory) error {
	h.plan = p
	h.services.open = map[*Service]struct{}{}
	h.groups.joined = map[netip.Addr]int{}
	h.stack = stack.New(stack.Options{
		NetworkProtocols: append(more,
			ipv4.NewProtocolWithOptions(ipv4.Options{IGMP: ipv4.IGMPOptions{Enabled: true}}),
			ipv6.NewProtocolWithOptions(ipv6.Options{MLD: ipv6.MLDOptions{Enabled: true}}),
		),
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4,
			icmp.NewProtocol6},
		HandleLocal: true,
	})
	if err := h.configure(ep); err != nil {
		h.stack.Destroy()
		return err
	}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return nil
}

// configure sets the stack's options, addresses and routes.
func (h *host) configure(ep stack.LinkEndpoint) error {
	sack := tcpip.TCPSACKEnabled(true)
	// Without RACK: its timers cost more than early retransmission gains where
	// the fabric loses little.
	recovery := tcpip.TCPRecovery(0)
	rcv := tcpip.TCPReceiveBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: tcpBuffer, Max: maxTCPBuffer}
	snd := tcpip.TCPSendBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: tcpBuffer, Max: maxTCPBuffer}
	moderate := tcpip.TCPModerateReceiveBufferOption(true)
	for _, o := range []tcpip.SettableTransportProtocolOption{&sack, &recovery, &rcv, &snd, &moderate} {
		if err := h.stack.SetTransportProtocolOption(tcp.ProtocolNumber, o); err != nil {
			return fmt.Errorf("option %T: %s", o, err)
		}
	}
	if err := h.stack.CreateNICWithOptions(nic, ep, stack.NICOptions{Name: h.plan.name}); err != nil {
		return fmt.Errorf("interface: %s", err)
	}
	for _, a := range h.addrs() {
		if err := h.addAddr(a); err != nil {
			return err
		}
	}
	for _, p := range h.onLink() {
		h.addRoute(p, netip.Addr{})
	}
	for _, p := range []string{"224.0.0.0/4", "255.255.255.255/32"} {
		h.addRoute(netip.MustParsePrefix(p), netip.Addr{})
	}
	if h.plan.v6 {
		h.addRoute(netip.MustParsePrefix("ff00::/8"), netip.Addr{})
	}
	for _, r := range h.plan.routes {
		if r.Dst.Addr().Is4() || h.plan.v6 {
			h.addRoute(r.Dst, r.Via)
		}
	}
	return nil
}

func (h *host) addAddr(a netip.Prefix) error {
	err := h.stack.AddProtocolAddress(nic, tcpip.ProtocolAddress{Protocol: protocol(a.Addr()),
		AddressWithPrefix: tcpip.AddressWithPrefix{Address: tcpip.AddrFromSlice(a.Addr().AsSlice()),
			PrefixLen: a.Bits()}}, stack.AddressProperties{})
	if err != nil {
		return fmt.Errorf("address %s: %s", a, err)
	}
	return nil
}

// addRoute adds a route, by a gateway if via is valid. The stack takes the first that
// matches and sorts by length itself.
func (h *host) addRoute(p netip.Prefix, via netip.Addr) {
	r := tcpip.Route{Destination: subnet(p), NIC: nic}
	if via.IsValid() {
		r.Gateway = tcpip.AddrFromSlice(via.AsSlice())
	}
	h.stack.AddRoute(r)
}

// addrs are the local addresses.
func (h *host) addrs() []netip.Prefix {
	var out []netip.Prefix
	if h.plan.linkLocal.IsValid() && h.plan.v6 {
		out = append(out, netip.PrefixFrom(h.plan.linkLocal, 64))
	}
	for _, a := range h.plan.addrs {
		if a.Addr().Is4() || h.plan.v6 {
			out = append(out, a)
		}
	}
	return out
}

// onLink are the prefixes that need no gateway.
func (h *host) onLink() []netip.Prefix {
	var out []netip.Prefix
	for _, a := range h.addrs() {
		if a.Bits() < a.Addr().BitLen() {
			out = append(out, a.Masked())
		}
	}
	return out
}

func protocol(a netip.Addr) tcpip.NetworkProtocolNumber {
	if a.Is4() {
		return header.IPv4ProtocolNumber
	}
	return header.IPv6ProtocolNumber
}

func subnet(p netip.Prefix) tcpip.Subnet {
	return tcpip.AddressWithPrefix{Address: tcpip.AddrFromSlice(p.Addr().AsSlice()), PrefixLen: p.Bits()}.Subnet()
}

// close ends services and connections, then the device below, and then the stack. It does so once.
func (h *host) close(ep *endpoint, below func()) {
	h.services.Lock()
	closing := !h.services.closed
	h.services.closed = true
	var open []*Service
	for s := range h.services.open {
		open = append(open, s)
	}
	h.services.Unlock()
	if !closing {
		return
	}
	h.cancel()
	ep.shut() // no caller waits in WritePackets, so that locks of the stack come free
	for _, s := range open {
		s.Close()
	}
	below()
	h.stack.Destroy()
}

// inbox is the packets that wait for the stack, which handles them on a goroutine of its own: it may have to wait for
// the link.
type inbox struct {
	mu     sync.Mutex // guards what follows
	ready  sync.Cond
	pkts   []*stack.PacketBuffer
	bytes  int
	closed bool
}

func newInbox() *inbox {
	b := &inbox{}
	b.ready.L = &b.mu
	return b
}

// begin begins a group of packets, added by put, that the stack receives together, until end. It reports false, and put
// must not be called, when the inbox is closed.
func (b *inbox) begin() bool {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return false
	}
	return true
}

// put takes p, unless there is too much already.
func (b *inbox) put(p *stack.PacketBuffer) bool {
	if len(b.pkts) == maxIn || b.bytes+p.Size() > maxInBytes {
		return false
	}
	b.pkts = append(b.pkts, p)
	b.bytes += p.Size()
	return true
}

func (b *inbox) end() {
	if len(b.pkts) > 0 {
		b.ready.Signal()
	}
	b.mu.Unlock()
}

func (b *inbox) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.ready.Broadcast()
}

// each calls to for every packet, and flush when no more wait, until the end.
func (b *inbox) each(to func(*stack.PacketBuffer), flush func()) {
	var batch []*stack.PacketBuffer
	for {
		b.mu.Lock()
		for len(b.pkts) == 0 && !b.closed {
			b.ready.Wait()
		}
		batch, b.pkts = b.pkts, batch[:0]
		b.bytes = 0
		closed := b.closed
		b.mu.Unlock()
		for i, p := range batch {
			if !closed {
				to(p)
			}
			p.DecRef()
			batch[i] = nil
		}
		if closed {
			return
		}
		flush()
	}
}

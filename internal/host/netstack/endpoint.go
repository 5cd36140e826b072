// SPDX-License-Identifier: Apache-2.0

package netstack

import (
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

const (
	// maxOut and maxOutBytes bound the packets that wait for ReadBatch. A sender beyond them waits: TCP then keeps its
	// data, and its segments grow.
	maxOut      = 1024
	maxOutBytes = 4 << 20
	// maxGSO is the longest packet that the stack makes, of which ReadBatch makes many: the largest length of an IPv4
	// header.
	maxGSO = 65535
)

// endpoint is the stack's view of the link: a NIC that accepts long TCP packets. It needs no resolution: neighbours are
// found below it, or by the Ethernet endpoint around it, which alone gives it an address.
type endpoint struct {
	mtu        atomic.Uint32
	addr       atomic.Pointer[tcpip.LinkAddress]
	wake       func() // unless nil, is called for the first packet after arm; it calls nothing here
	dispatcher atomic.Pointer[stack.NetworkDispatcher]
	noCarrier  *atomic.Uint64 // counts
	// checked marks that the packet being delivered has had its checksums verified. Only the goroutine that delivers
	// changes it.
	checked atomic.Bool

	mu              sync.Mutex // guards what follows; nothing is called under it
	notEmpty, space sync.Cond
	ring            [maxOut]*stack.PacketBuffer
	head, n         int
	bytes           int
	carrier, closed bool
	armed           bool
}

var (
	_ stack.LinkEndpoint      = (*endpoint)(nil)
	_ stack.GSOEndpoint       = (*endpoint)(nil)
	_ stack.NetworkDispatcher = (*endpoint)(nil)
)

func newEndpoint(mtu int, noCarrier *atomic.Uint64) *endpoint {
	e := &endpoint{noCarrier: noCarrier}
	e.mtu.Store(uint32(mtu))
	e.notEmpty.L, e.space.L = &e.mu, &e.mu
	return e
}

// WritePackets accepts packets from the stack, and waits while there are too many. Without carrier they are dropped, as
// on any interface: a sender that waited would hold locks that others need.
func (e *endpoint) WritePackets(list stack.PacketBufferList) (int, tcpip.Error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, p := range list.AsSlice() {
		size := p.Size()
		for !e.closed && e.carrier && (e.n == maxOut || e.n > 0 && e.bytes+size > maxOutBytes) {
			e.space.Wait()
		}
		switch {
		case e.closed:
			return i, &tcpip.ErrClosedForSend{}
		case !e.carrier:
			e.noCarrier.Add(1)
			continue
		}
		e.ring[(e.head+e.n)%maxOut] = p.Clone()
		e.n++
		e.bytes += size
		if e.n == 1 {
			e.notEmpty.Signal()
		}
		if e.armed {
			e.armed = false
			e.wake()
		}
	}
	return list.Len(), nil
}

// take waits for packets and moves at most len(to) of them there, with their
// references. It returns 0 when the endpoint is closed.
func (e *endpoint) take(to []*stack.PacketBuffer) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.n == 0 && !e.closed {
		e.notEmpty.Wait()
	}
	return e.move(to)
}

// tryTake is take without waiting. open is false when the endpoint is closed.
func (e *endpoint) tryTake(to []*stack.PacketBuffer) (n int, open bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.move(to), !e.closed
}

// move is take for the packets that wait. mu is held.
func (e *endpoint) move(to []*stack.PacketBuffer) int {
	if e.closed {
		return 0
	}
	n := min(e.n, len(to))
	for i := range n {
		to[i] = e.ring[e.head]
		e.ring[e.head] = nil
		e.bytes -= to[i].Size()
		e.head = (e.head + 1) % maxOut
	}
	e.n -= n
	e.space.Broadcast()
	return n
}

// arm has wake called for the next packet, unless some wait already.
func (e *endpoint) arm() (waiting bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.armed = e.n == 0
	return !e.armed
}

// setCarrier has packets pass, or drops them, with those that wait.
func (e *endpoint) setCarrier(on bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.carrier = on; !on {
		e.noCarrier.Add(uint64(e.n))
		e.drop()
	}
	e.space.Broadcast()
}

// drop releases the packets that wait. mu is held.
func (e *endpoint) drop() {
	for ; e.n > 0; e.n-- {
		e.ring[e.head].DecRef()
		e.ring[e.head] = nil
		e.head = (e.head + 1) % maxOut
	}
	e.bytes = 0
}

// shut ends take and WritePackets.
func (e *endpoint) shut() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.drop()
	e.notEmpty.Broadcast()
	e.space.Broadcast()
}

// Attach implements stack.LinkEndpoint; d is nil when the NIC is removed.
func (e *endpoint) Attach(d stack.NetworkDispatcher) {
	if d == nil {
		e.dispatcher.Store(nil)
		return
	}
	e.dispatcher.Store(&d)
}

// IsAttached implements stack.LinkEndpoint.
func (e *endpoint) IsAttached() bool { return e.dispatcher.Load() != nil }

// MTU implements stack.LinkEndpoint.
func (e *endpoint) MTU() uint32 { return e.mtu.Load() }

// SetMTU implements stack.LinkEndpoint.
func (e *endpoint) SetMTU(mtu uint32) { e.mtu.Store(mtu) }

// GSOMaxSize implements stack.GSOEndpoint.
func (e *endpoint) GSOMaxSize() uint32 { return maxGSO }

// SupportedGSO implements stack.GSOEndpoint: long TCP packets come here, with
// no checksum yet.
func (e *endpoint) SupportedGSO() stack.SupportedGSO { return stack.HostGSOSupported }

// Capabilities implements stack.LinkEndpoint. The stack calls it before it handles a packet, to learn whether checksums
// have been verified.
func (e *endpoint) Capabilities() stack.LinkEndpointCapabilities {
	if e.checked.Load() {
		return stack.CapabilityRXChecksumOffload
	}
	return 0
}

// DeliverNetworkPacket gives the stack a packet that has been through the
// joining of segments: those it has joined have a wrong checksum, but were
// verified one by one; all others the stack verifies.
func (e *endpoint) DeliverNetworkPacket(proto tcpip.NetworkProtocolNumber, p *stack.PacketBuffer) {
	if d := e.dispatcher.Load(); d != nil {
		e.checked.Store(p.RXChecksumValidated)
		(*d).DeliverNetworkPacket(proto, p)
	}
}

// DeliverLinkPacket implements stack.NetworkDispatcher: the stack has no packet endpoints.
func (e *endpoint) DeliverLinkPacket(tcpip.NetworkProtocolNumber, *stack.PacketBuffer) {}

// MaxHeaderLength implements stack.LinkEndpoint: headers of the link are
// written into buffers of its own.
func (e *endpoint) MaxHeaderLength() uint16 { return 0 }

// LinkAddress implements stack.LinkEndpoint.
func (e *endpoint) LinkAddress() tcpip.LinkAddress {
	if a := e.addr.Load(); a != nil {
		return *a
	}
	return ""
}

// SetLinkAddress implements stack.LinkEndpoint.
func (e *endpoint) SetLinkAddress(a tcpip.LinkAddress) { e.addr.Store(&a) }

// ARPHardwareType implements stack.LinkEndpoint.
func (e *endpoint) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareNone }

// AddHeader implements stack.LinkEndpoint.
func (e *endpoint) AddHeader(*stack.PacketBuffer) {}

// ParseHeader implements stack.LinkEndpoint.
func (e *endpoint) ParseHeader(*stack.PacketBuffer) bool { return true }

// Wait implements stack.LinkEndpoint: there is no goroutine.
func (e *endpoint) Wait() {}

// Close implements stack.LinkEndpoint.
func (e *endpoint) Close() { e.shut() }

// SetOnCloseAction implements stack.LinkEndpoint: the NIC is removed by Device.
func (e *endpoint) SetOnCloseAction(func()) {}

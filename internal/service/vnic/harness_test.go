// SPDX-License-Identifier: Apache-2.0

package vnic

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"weft/internal/proto/ether"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
)

// adapter is a function of an adapter: Netdevs that write down how they are driven.
type adapter struct {
	*Netdevs
	log  []string
	fail string // the call that fails
}

var errAdapter = errors.New("out of order")

func (a *adapter) AllocNetdev(vport uint8) (Netdev, error) {
	s, err := a.Alloc(vport)
	if err != nil {
		return nil, err
	}
	a.note("alloc %d", vport)
	return &netdev{s, a}, nil
}

func (a *adapter) FreeNetdev(vport uint8) {
	a.note("free %d", vport)
	a.Free(vport)
}

func (a *adapter) note(format string, args ...any) {
	a.log = append(a.log, fmt.Sprintf(format, args...))
}

// did returns what happened since it was called last.
func (a *adapter) did() (l []string) {
	l, a.log = a.log, nil
	return l
}

type netdev struct {
	*Slot
	a *adapter
}

func (n *netdev) SetVESW(id uint16) error {
	n.a.note("vesw %d", id)
	if n.a.fail == "vesw" && id != 0 {
		return errAdapter
	}
	return n.Slot.SetVESW(id)
}

func (n *netdev) SetGroups(dlids []uint32) (refused int) {
	if n.a.fail == "groups" {
		return len(dlids)
	}
	return n.Slot.SetGroups(dlids)
}

func (n *netdev) Up() error {
	n.a.note("up")
	if n.a.fail == "up" {
		return errAdapter
	}
	return n.Slot.Up()
}

func (n *netdev) Down() {
	n.a.note("down")
	n.Slot.Down()
}

func (n *netdev) Configure(d Device) {
	n.a.note("mac %x mtu %d/%d carrier %v dormant %v", d.MAC, d.MTU, d.MaxMTU, d.Carrier, d.Dormant)
	n.Slot.Configure(d)
}

// host is a function with ports.
type host struct {
	*Ports
	a  *adapter
	rx *Receiver
	tx *Sender // of port 0
}

const (
	testVESW   = 0x201
	testFabric = 0x301
	testPKey   = ib.PKey(0x8002)
	testGroup  = 0xf00002
)

// info is a configuration of a port that has nothing to complain about.
func info(lid uint32) *mad.VESWPortInfo {
	i := mad.DefaultVESWPortInfo()
	i.VESW.FabricID, i.VESW.VESWID, i.VESW.PKey, i.VESW.McastDLID = testFabric, testVESW, testPKey, testGroup
	i.Port.PortNum, i.Port.EncapSLID, i.Port.ConfigState = lid, lid, mad.VESWForwarding
	i.Port.BaseMAC = mad.VESWMAC(testFabric, testVESW, lid)
	return &i
}

// bare is a host without port 0.
func bare(lid uint32) *host {
	h := &host{a: &adapter{Netdevs: NewNetdevs(0)}}
	h.a.SetLIDs(lid, 0)
	h.Ports = New(Config{Function: h.a, OPAPort: 1})
	h.SetLink(1, true)
	h.rx = h.a.Receiver()
	return h
}

// newHost is a host with a forwarding port 0.
func newHost(t testing.TB, lid uint32, change func(i *mad.VESWPortInfo)) *host {
	t.Helper()
	h := bare(lid)
	i := info(lid)
	if change != nil {
		change(i)
	}
	if err := h.SetInfo(1, 0, i); err != nil {
		t.Fatal(err)
	}
	h.Port(0).SetAdmin(1, true)
	h.Port(0).SetMTU(1, int(i.VESW.EthMTU))
	h.tx = h.Port(0).Sender()
	h.a.did()
	h.drain(1)
	return h
}

// frame makes an Ethernet frame of n octets.
func frame(dst, src [6]byte, n int) []byte {
	f := make([]byte, n)
	copy(f, dst[:])
	copy(f[6:], src[:])
	f[12], f[13] = 0x88, 0xb5
	for i := 14; i < n; i++ {
		f[i] = byte(i)
	}
	return f
}

// packet sends a frame and returns its packet, built in dirty memory.
func (h *host) packet(t testing.TB, f []byte) (p []byte, head wire.Header16) {
	t.Helper()
	in := ether.Classify(f)
	var d Decision
	c := Cut{1, len(f), len(f)}
	if !h.tx.Decide(f, &in, c, &d) {
		t.Fatalf("not sent: %+v", h.tx.Counters())
	}
	p = seal(&d, f)
	h.tx.Sent(&d, c)
	return p, parse(t, p)
}

func seal(d *Decision, f []byte) []byte {
	p := make([]byte, PacketLen(len(f)))
	for i := range p {
		p[i] = 0xa5
	}
	copy(p[HeaderLen:], f)
	d.Seal(p, len(f))
	return p
}

func parse(t testing.TB, p []byte) (h wire.Header16) {
	t.Helper()
	if _, why := wire.Parse16(p, &h); why != wire.OK {
		t.Fatalf("% x: %v", p, why)
	}
	if why := wire.Verify16(p); why != wire.OK {
		t.Fatalf("% x: %v", p, why)
	}
	return h
}

// take gives a packet to a host, as its link would.
func (h *host) take(t testing.TB, p []byte) (in Inbound, ok bool) {
	t.Helper()
	head := parse(t, p)
	ok = h.rx.Receive(&head, p, &in)
	return in, ok
}

// dlid decides for a frame and returns where it goes, 0 where it is dropped.
func (h *host) dlid(dst [6]byte) uint32 {
	f := frame(dst, [6]byte{2}, 64)
	in := ether.Classify(f)
	var d Decision
	if !h.tx.Decide(f, &in, Cut{1, len(f), len(f)}, &d) {
		return 0
	}
	return d.Header.DLID
}

// some returns the counters that are not 0, by name.
func some(each func(func(string, uint64))) map[string]uint64 {
	m := map[string]uint64{}
	each(func(name string, v uint64) {
		if v != 0 {
			m[name] += v
		}
	})
	return m
}

type hexBytes []byte

func (h *hexBytes) UnmarshalText(b []byte) (err error) {
	*h, err = hex.DecodeString(string(b))
	return err
}

func (h hexBytes) mac() [6]byte { return [6]byte(h) }

// vectors reads test/vectors/opa16b.json.
func vectors(t testing.TB, v any) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "..", "test", "vectors", "opa16b.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatal(err)
	}
}

// drain returns all traps that are due.
func (h *host) drain(now mono.Time) (ops []mad.VEMAOpcode) {
	for {
		t, ok := h.NextTrap(now)
		if !ok {
			return ops
		}
		ops = append(ops, t.Opcode)
	}
}

// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/internal/proto/ib"
	"weft/internal/proto/wire"
	"weft/test/lab"
)

// memberships is the filter for what hosts say of IP groups: IGMP, and MLD behind a
// hop-by-hop header.
const memberships = "igmp or ip6[6] = 0"

// groups has each side send to IP groups that the other is in.
func (b *bench) groups(t *testing.T) {
	b.run(t, "mckey", func(*testing.T) error { return b.mckey("") })
	if lab.Soak {
		b.run(t, "mckey -o", func(*testing.T) error { return b.mckey(" -o") })
		b.run(t, "mckey of IPv6", func(*testing.T) error { return b.mckey6() })
	}
	t.Run("verbcheck mcast.copies over IPv6", func(t *testing.T) { b.verbcheck(t, true, true, "mcast.copies") })
}

// group returns a group that has had no member before.
func (b *bench) group() netip.Addr {
	b.port++
	return netip.AddrFrom4([4]byte{239, 78, byte(b.port >> 8), byte(b.port)})
}

// mckey lets Debian's program send both ways at once, by two groups: it takes three
// seconds to begin. How is the flag with which senders join.
func (b *bench) mckey(how string) error {
	toGuest, toWeft := b.group(), b.group()
	// soft-RoCE sets a filter in the card when a queue pair is attached, as if the group were one of IPv6.
	a := toGuest.As4()
	joined := fmt.Sprintf("/sbin/ip maddr show dev eth0 | grep -q 33:33:%02x:%02x:%02x:%02x", a[0], a[1], a[2], a[3])
	if err := b.serve(fmt.Sprintf("mckey -m %v -b %s", toGuest, b.v4), joined); err != nil {
		return err
	}
	receiver, err := lab.Start(b.node.Program("mckey", "-m", toWeft.String(), "-b", b.ns.V4))
	if err != nil {
		return err
	}
	defer receiver.Kill()
	if err := b.waitFor("the receiver is in the group", receiver, func() (bool, error) {
		var list []api.Group
		err := b.node.Query(&list, "mcast", "list")
		joined := func(g api.Group) bool { return g.Address == toWeft.String() && len(g.QPs) == 1 }
		return slices.ContainsFunc(list, joined), err
	}); err != nil {
		return err
	}
	argv := []string{"mckey", "-s", "-m", toGuest.String(), "-b", b.ns.V4}
	if how != "" {
		argv = append(argv, "-o")
	}
	sender, err := lab.Start(b.node.Program(argv...))
	if err != nil {
		return err
	}
	defer sender.Kill()
	out, err := b.guest.Run(fmt.Sprintf("timeout 60 mckey -s%s -m %v -b %s", how, toWeft, b.v4), 2*time.Minute,
		b.node.Proc)
	if err != nil {
		err = fmt.Errorf("the guest sends: %w\n%s", err, out)
	}
	for _, p := range []*lab.Proc{sender, receiver} {
		if werr := b.waitBeside(p, lab.PeerPatience); werr != nil {
			err = errors.Join(err, fmt.Errorf("%w\n%s", werr, p.Output()))
		}
	}
	if out, serr := b.served(); serr != nil {
		err = errors.Join(err, fmt.Errorf("the guest receives: %w\n%s", serr, out))
	}
	return errors.Join(err, b.forgotten())
}

// mckey6: Linux joins groups of IPv6 by the connection manager for RoCEv1 only.
func (b *bench) mckey6() error {
	out, err := b.guest.Run("timeout 20 mckey -s -m ff0e::78:1 -b "+b.v6, time.Minute)
	if err == nil || !strings.Contains(out, "error 524") {
		return fmt.Errorf("%v\n%s", err, out)
	}
	// Weft's own goes on, for peers that attach by verbs.
	sender := b.node.Program("mckey", "-s", "-m", "ff0e::78:1", "-b", b.ns.V6)
	if out, err := lab.Run(sender, time.Minute); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return b.forgotten()
}

// groupTraffic is what a capture has of IP groups: which ends reported to be in one, and which sent to it.
// Index true is Weft, false the guest.
type groupTraffic struct {
	guest  [6]byte // its MAC
	ends   map[bool][]netip.Addr
	member map[bool]map[netip.Addr]bool
	sent   map[bool]map[netip.Addr]int
}

func newGroupTraffic(b *bench) *groupTraffic {
	g := &groupTraffic{guest: [6]byte{0x52, 0x54, 0, 0, 0, 2}, ends: map[bool][]netip.Addr{
		true:  {netip.MustParseAddr(b.ns.V4), netip.MustParseAddr(b.ns.V6)},
		false: {netip.MustParseAddr(b.v4), netip.MustParseAddr(b.v6)},
	}}
	g.member = map[bool]map[netip.Addr]bool{true: {}, false: {}}
	g.sent = map[bool]map[netip.Addr]int{true: {}, false: {}}
	return g
}

func (g *groupTraffic) weft(frame []byte) bool { return [6]byte(frame[6:12]) != g.guest }

// report notes the groups that the sender of a frame is in, if it is a report of IGMPv3 (RFC 3376, 4.2)
// or MLDv2 (RFC 3810, 5.2), which differ in the length of addresses.
func (g *groupTraffic) report(frame []byte) bool {
	packet := frame[14:]
	var records []byte
	alen := 0
	switch proto := binary.BigEndian.Uint16(frame[12:]); {
	case proto == 0x0800 && packet[9] == 2:
		if b := packet[packet[0]&15*4:]; b[0] == 0x22 {
			records, alen = b[8:], 4
		}
	case proto == 0x86dd && packet[6] == 0:
		if b := packet[40+8:]; b[0] == 143 {
			records, alen = b[8:], 16
		}
	default:
		return false
	}
	for len(records) >= 4+alen && alen > 0 {
		sources := int(binary.BigEndian.Uint16(records[2:]))
		group, _ := netip.AddrFromSlice(records[4 : 4+alen])
		// To exclude no source is to join.
		if kind := records[0]; (kind == 2 || kind == 4) && sources == 0 {
			g.member[g.weft(frame)][group] = true
		}
		records = records[min(len(records), 4+alen+sources*alen+4*int(records[1])):]
	}
	return true
}

// packet notes the sender to a group, and returns what is wrong with such a packet. Its MAC address is
// that of the IP group (RFC 1112, 6.4; RFC 2464, 7), its queue pair the one for groups (IBA volume 1, 10.5),
// its source the sender's.
func (g *groupTraffic) packet(frame []byte, ip *wire.IPUDP, h *wire.Headers) string {
	group := ip.Dst.Addr().Unmap()
	if !group.IsMulticast() {
		if frame[0]&1 != 0 || h.DestQPN == ib.QPNMulticast {
			return "a group's MAC address or queue pair with a host's address"
		}
		return ""
	}
	mac := []byte{0x33, 0x33}
	if a := group.AsSlice(); len(a) == 4 {
		mac = append(mac[:0], 1, 0, 0x5e, a[1]&0x7f, a[2], a[3])
	} else {
		mac = append(mac, a[12:]...)
	}
	weft := g.weft(frame)
	switch {
	case !bytes.Equal(frame[:6], mac):
		return fmt.Sprintf("to %v by MAC % x", group, frame[:6])
	case h.DestQPN != ib.QPNMulticast || h.Opcode.Service() != ib.ServiceUD:
		return fmt.Sprintf("to %v as %v of queue pair %#x", group, h.Opcode, uint32(h.DestQPN))
	case group.Is4() && h.QKey != 0x01234567: // all of them come of the connection manager
		return fmt.Sprintf("to %v with Q_Key %#x", group, uint32(h.QKey))
	case !slices.Contains(g.ends[weft], ip.Src.Addr().Unmap()):
		return fmt.Sprintf("to %v from %v", group, ip.Src.Addr())
	}
	g.sent[weft][group]++
	return ""
}

// check expects that both ends sent to groups of IPv4 and IPv6, in which the other was.
func (g *groupTraffic) check(t *testing.T) {
	t.Logf("to groups: from Weft %v, from soft-RoCE %v; members: Weft %v, soft-RoCE %v", g.sent[true], g.sent[false],
		g.member[true], g.member[false])
	for weft, sent := range g.sent {
		family := map[bool]int{}
		for group, n := range sent {
			if g.member[!weft][group] {
				family[group.Is4()] += n
			}
		}
		// How many there must be the receivers know.
		if family[true] == 0 || family[false] == 0 {
			t.Errorf("%s sent %d packets to groups of IPv4 and %d to those of IPv6 that the other end had joined",
				map[bool]string{true: "weft", false: "soft-RoCE"}[weft], family[true], family[false])
		}
	}
}

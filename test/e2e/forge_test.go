// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"weft/internal/control/api"
	trunks "weft/internal/fabric/trunk"
	"weft/internal/proto/ib"
	"weft/internal/proto/wire"
	"weft/internal/service/vnic"
	"weft/test/lab"
)

// forgeEnv has this binary send packets of its own to a node, as datagrams of a trunk (docs/notes/trunk.md).
const forgeEnv = "WEFT_E2E_FORGE"

// forgeStream is one that no lane of a node here has.
const forgeStream = trunks.MaxStreams - 1

// serveForge is that program: "WHO IF ADDRESS NUMBER PACKET…". The trunks have --trunk-security none. WHO is
//
//   - node: a program that may listen and send where a node does, and so knows the session of its trunk;
//   - guess: one that may send from a node's address, but not listen;
//   - stranger: one with an address of its own.
//
// "repeat IF ADDRESS COUNT", of which the trunks may have keys, is another: see repeat.
func serveForge(what string) int {
	do, args := forge, strings.Fields(what)
	if args[0] == "repeat" {
		do = repeat
	}
	if err := do(args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func forge(f []string) error {
	who, to := f[0], netip.MustParseAddr(f[2])
	number, err := strconv.ParseUint(f[3], 10, 32)
	if err != nil {
		return err
	}
	h := trunks.Header{Index: 0x22222222}
	if who != "stranger" {
		if h, err = captureHeader(f[1], to); err != nil {
			return err
		}
	}
	if who == "guess" {
		h.Index ^= 0x5a5a
	}
	sock, err := rawSocket()
	if err != nil {
		return err
	}
	send := func(body []byte) error {
		h.Number = number
		number++
		b := make([]byte, trunks.HeaderLen, trunks.HeaderLen+len(body))
		h.Put(b)
		return sock.send(to, append(b, body...))
	}
	h.Kind, h.Stream = trunks.Data, forgeStream
	for _, text := range f[4:] {
		p, err := hex.DecodeString(text)
		if err != nil {
			return err
		}
		const kind16 = 1
		body := append(binary.BigEndian.AppendUint16(nil, uint16(1+len(p))), kind16)
		if err := send(append(body, p...)); err != nil {
			return err
		}
	}
	return nil
}

const udpHeader = 8

// rawSock sends datagrams as a node does, from its port, beside it.
type rawSock int

func rawSocket() (rawSock, error) {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	return rawSock(s), err
}

func (s rawSock) send(to netip.Addr, datagram []byte) error {
	b := make([]byte, udpHeader, udpHeader+len(datagram))
	binary.BigEndian.PutUint16(b, trunks.DefaultPort)
	binary.BigEndian.PutUint16(b[2:], trunks.DefaultPort)
	binary.BigEndian.PutUint16(b[4:], uint16(cap(b))) // and no checksum
	return unix.Sendto(int(s), append(b, datagram...), 0, &unix.SockaddrInet4{Addr: to.As4()})
}

// captureHeader waits for a datagram of a session that the node here sends to another, and returns its header.
func captureHeader(ifname string, to netip.Addr) (h trunks.Header, err error) {
	err = captureDatagrams(ifname, to, func(_ []byte, of trunks.Header) bool {
		h = of
		return false
	})
	return h, err
}

// captureDatagrams calls f with each datagram of a session that the node here sends to another, while f returns true.
// A datagram is valid during the call.
func captureDatagrams(ifname string, to netip.Addr, f func(datagram []byte, h trunks.Header) bool) error {
	i, err := net.InterfaceByName(ifname)
	if err != nil {
		return err
	}
	// What a host itself sends is seen by listeners to everything alone.
	var proto [2]byte
	binary.BigEndian.PutUint16(proto[:], unix.ETH_P_ALL)
	all := binary.NativeEndian.Uint16(proto[:])
	sock, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(all))
	if err == nil {
		err = unix.Bind(sock, &unix.SockaddrLinklayer{Ifindex: i.Index, Protocol: all})
	}
	if err != nil {
		return err
	}
	defer unix.Close(sock)
	b, ip4 := make([]byte, 64<<10), to.As4()
	for {
		n, _, err := unix.Recvfrom(sock, b, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		} else if err != nil {
			return err
		}
		const ipHeader = 20
		if n < ipHeader+udpHeader || b[0] != 0x45 || b[9] != unix.IPPROTO_UDP || !bytes.Equal(b[16:20], ip4[:]) {
			continue
		}
		var h trunks.Header
		if _, why := h.Parse(b[ipHeader+udpHeader : n]); why == trunks.OK && !f(b[ipHeader+udpHeader:n], h) {
			return nil
		}
	}
}

// forgery is a packet and the name that its refusal is counted under: by an interface, by the device of which the ports
// it fits none of, or by the node.
type forgery struct {
	name, of, counter string
	packet            []byte
}

// forged makes a packet 16B with a frame to all with text, of which change alters the
// header before it is sealed.
func forged(text string, slid, dlid uint32, vesw int, key ib.PKey, change func(*wire.Header16)) []byte {
	frame := make([]byte, 100)
	copy(frame, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0x0b, 0xad, testType >> 8, testType & 0xff})
	copy(frame[14:], text)
	p := make([]byte, vnic.PacketLen(len(frame)))
	h := wire.Header16{SLID: slid, DLID: dlid, Length: uint16(len(p) / 8), L4: wire.L4Ethernet, PKey: key}
	if change != nil {
		change(&h)
	}
	h.Put(p)
	wire.PutEthernet16(p[wire.Header16Len:], uint16(vesw))
	copy(p[vnic.HeaderLen:], frame)
	wire.Seal16(p, wire.Ethernet16Len+len(frame))
	return p
}

// forgedIDs has a process at node 2, which is in red alone, and one at a host that is no node, send packets to the
// hosts of red and blue with identifiers of their own invention.
func (s *subnet) forgedIDs(t *testing.T, red, blue int) {
	const second = "opa1v1"
	listeners := []*lab.Proc{s.startListener(t, 0, first), s.startListener(t, 0, second),
		s.startListener(t, 1, first), s.startListener(t, 1, second)}
	mine, theirs, far := s.portIn(2, red), s.portIn(0, blue), s.portIn(1, blue)
	key := func(v api.VESWInterface) ib.PKey {
		k, err := strconv.ParseUint(v.PKey, 0, 16)
		if err != nil {
			t.Fatal(err)
		}
		return ib.PKey(k)
	}
	group := func(v api.VESWInterface) uint32 {
		m, err := strconv.ParseUint(v.MLID, 0, 24)
		if err != nil {
			t.Fatal(err)
		}
		return uint32(m)
	}
	own, other := key(mine), key(theirs)
	slid, dlid := uint32(mine.LID), uint32(theirs.LID)
	const node = "" // counts it
	list := []forgery{
		{"another VESW", second, "rx_bad_pkey", forged("forged", slid, dlid, blue, own, nil)},
		{"another VESW, to its group", second, "rx_bad_pkey", forged("forged", slid, group(theirs), blue, own, nil)},
		{"another VESW, to the own group", second, "rx_bad_dlid", forged("forged", slid, group(mine), blue, own, nil)},
		{"the own VESW, to another's group", first, "rx_bad_dlid", forged("forged", slid, group(theirs), red, own,
			nil)},
		{"a VESW equal in the low octet", native, "rx_bad_veswid", forged("forged", slid, dlid, blue^0x100, own, nil)},
		{"no VESW", native, "rx_bad_veswid", forged("forged", slid, dlid, 0, own, nil)},
		{"another partition", first, "rx_bad_pkey", forged("forged", slid, dlid, red, other, nil)},
		{"a partition that nobody is in", second, "rx_bad_pkey", forged("forged", slid, dlid, blue, 0x9abc, nil)},
		{"from the receiver", node, "drop_own_source", forged("forged", dlid, dlid, blue, other, nil)},
		{"from a group", node, "drop_route_bad_lid", forged("forged", group(theirs), dlid, blue, other, nil)},
		{"from nobody", node, "drop_route_bad_lid", forged("forged", 0, dlid, blue, other, nil)},
		{"to a LID that nobody has", node, "drop_route_", forged("forged", slid, 0x7bad, blue, own, nil)},
		{"to a LID that no switch knows", node, "drop_route_bad_lid", forged("forged", slid, 0x12bad, blue, own, nil)},
		{"no Ethernet", native, "rx_bad_l4", forged("forged", slid, dlid, blue, other,
			func(h *wire.Header16) { h.L4 = 0x79 })},
		{"a wrong length", node, "drop_link_length", forged("forged", slid, dlid, blue, other,
			func(h *wire.Header16) { h.Length++ })},
		{"half of it", node, "drop_link_length", forged("forged", slid, dlid, blue, other, nil)[:64]},
		{"the header alone", node, "drop_short", forged("forged", slid, dlid, blue, other, nil)[:wire.Header16Len]},
		{"a wrong CRC", node, "drop_bad_icrc", forged("forged", slid, dlid, blue, other, nil)},
		{"wrong padding", node, "drop_bad_pad", forged("forged", slid, dlid, blue, other, nil)},
	}
	list[len(list)-2].packet[40] ^= 1
	list[len(list)-1].packet[len(list[len(list)-1].packet)-1] |= 0x3f
	// Passed on, it is refused by the node that it reaches.
	through := forgery{"another VESW, by way of a node", second, "rx_bad_pkey", forged("forged", slid,
		uint32(far.LID), blue, own, nil)}

	// counted adds up all counters of a node with names that begin so.
	counted := func(i int, f *forgery) (n uint64) {
		var all []api.Counter
		args := []string{"stat", "--all"}
		if f.of != node {
			args = []string{"vesw", "stats"}
		}
		if err := s.nodes[i].Query(&all, args...); err != nil {
			t.Fatal(err)
		}
		for _, c := range all {
			if strings.HasPrefix(c.Name, f.counter) && (f.of == node || c.Instance == f.of) {
				n += c.Value
			}
		}
		return n
	}
	sequence := 0
	send := func(from *lab.NetNS, who, ifname, to string, packets ...[]byte) {
		t.Helper()
		what := fmt.Sprint(who, " ", ifname, " ", to, " ", sequence)
		for _, p := range packets {
			what += " " + hex.EncodeToString(p)
		}
		sequence += 1 + len(packets)
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		if out, err := lab.Run(lab.Cmd{NetNS: from.Name, Env: []string{forgeEnv + "=" + what}, Args: []string{exe}},
			fabricLimit); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	var all [][]byte
	for i := range list {
		all = append(all, list[i].packet)
	}
	all = append(all, through.packet)

	// A stranger, and a host that sends from node 2's address but cannot know the session of its trunk.
	outside := []struct {
		who, ifname, to, counter string
		from                     *lab.NetNS
	}{
		{"stranger", "eth0", s.Spaces[0].V4, "drop_unknown_peer", s.Hub},
		{"guess", "trunk0", s.TrunkAddr(0, 2), "drop_unknown_session", s.Spaces[2]},
	}
	control := forged("control", slid, dlid, red, own, nil)
	for _, o := range outside {
		f := &forgery{"", node, o.counter, nil}
		was := counted(0, f)
		s.until(o.who+": every datagram is refused by name", func() bool {
			send(o.from, o.who, o.ifname, o.to, append(all[:len(all):len(all)], control)...)
			return counted(0, f) >= was+uint64(len(all))
		})
	}
	for _, p := range listeners {
		if out := p.Output(); strings.Contains(out, "forged") || strings.Contains(out, "control") {
			t.Fatalf("received of who is no peer:\n%s", out)
		}
	}

	// And node 2 itself, gone bad: its trunk is accepted, and its port is active.
	type at struct{ of, counter string }
	was, want := map[at]uint64{}, map[at]uint64{}
	for i := range list {
		was[at{list[i].of, list[i].counter}] = counted(0, &list[i])
		want[at{list[i].of, list[i].counter}]++
	}
	wasFar := counted(1, &through)
	missing := ""
	for range 20 { // a datagram may be lost, and then all are sent once more
		send(s.Spaces[2], "node", "trunk0", s.TrunkAddr(0, 2), append(all[:len(all):len(all)], control)...)
		s.until("the last packet, which is true, arrives",
			func() bool { return strings.Contains(listeners[0].Output(), "received control in") }, listeners[0])
		missing = ""
		for i := range list {
			f := &list[i]
			if n := counted(0, f) - was[at{f.of, f.counter}]; n < want[at{f.of, f.counter}] {
				missing += fmt.Sprintf("%s: %d of %d counted as %s %s\n", f.name, n, want[at{f.of, f.counter}], f.of,
					f.counter)
			}
		}
		if n := counted(1, &through) - wasFar; n < 1 {
			missing += through.name + ": not counted\n"
		}
		if missing == "" {
			break
		}
	}
	if missing != "" {
		t.Error(missing)
	}
	for i, p := range listeners {
		out := p.Output()
		if strings.Contains(out, "forged") || i != 0 && strings.Contains(out, "control") {
			t.Errorf("listener %d received of a forged packet:\n%s", i, out)
		}
	}
	for i := range 2 {
		s.reaches(i, v4(1-i)) // and nothing is broken
	}
}

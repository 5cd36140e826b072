// SPDX-License-Identifier: Apache-2.0

package neighbour

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weft/internal/proto/ether"
	"weft/internal/proto/mono"
)

var (
	own   = [6]byte{0x52, 0x54, 0, 0, 0, 1}
	peer  = [6]byte{0x52, 0x54, 0, 0, 0, 2}
	other = [6]byte{0x52, 0x54, 0, 0, 0, 3}

	own4, peer4 = netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("10.9.0.2")
	own6, peer6 = netip.MustParseAddr("fd09::1"), netip.MustParseAddr("fd09::a1b2:c3d4")
)

// card is a Resolver with what it reports.
type card struct {
	*Resolver
	said []string
}

func newCard() *card {
	c := &card{}
	c.Resolver = New(own, func(ip netip.Addr, mac [6]byte, ok bool) {
		c.said = append(c.said, fmt.Sprintf("%s %x %v", ip, mac, ok))
	})
	return c
}

// sent returns all frames that the card sends now.
func (c *card) sent(now mono.Time) (frames [][]byte) {
	buf := make([]byte, MaxFrame)
	for {
		f, ok := c.Next(now, buf)
		if !ok {
			return frames
		}
		frames = append(frames, bytes.Clone(f))
	}
}

func (c *card) heard(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(c.said, want) {
		t.Errorf("reported %q, want %q", c.said, want)
	}
	c.said = nil
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// arpFrame is an ARP packet of a station.
func arpFrame(op byte, to, from, sender [6]byte, spa netip.Addr, target [6]byte, tpa netip.Addr) []byte {
	b := make([]byte, ether.MinFrame)
	copy(b, to[:])
	copy(b[6:], from[:])
	copy(b[12:], []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, op})
	copy(b[22:], sender[:])
	copy(b[28:], spa.AsSlice())
	copy(b[32:], target[:])
	copy(b[38:], tpa.AsSlice())
	return b
}

// ndFrame is a message of neighbour discovery with a right checksum.
func ndFrame(to, from [6]byte, src, dst netip.Addr, kind, flags byte, target netip.Addr, options ...byte) []byte {
	b := make([]byte, 78+len(options))
	copy(b, to[:])
	copy(b[6:], from[:])
	copy(b[12:], []byte{0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(24 + len(options)), 58, 255})
	copy(b[22:], src.AsSlice())
	copy(b[38:], dst.AsSlice())
	b[54], b[58] = kind, flags
	copy(b[62:], target.AsSlice())
	copy(b[78:], options)
	resum(b)
	return b
}

// resum makes the checksum of a message right, by RFC 1071 over RFC 8200's pseudo header.
func resum(b []byte) {
	b[56], b[57] = 0, 0
	pseudo := append(append(append([]byte{}, b[22:54]...), 0, 0, 0, byte(len(b)-54), 0, 0, 0, 58), b[54:]...)
	be.PutUint16(b[56:], ether.Checksum(pseudo))
}

func option(kind byte, mac [6]byte) []byte { return append([]byte{kind, 1}, mac[:]...) }

// answer is the right answer of the peer, by the address family.
func answer(v6 bool) []byte {
	if v6 {
		return ndFrame(own, peer, peer6, own6, 136, 0x60, peer6, option(2, peer)...)
	}
	return arpFrame(2, own, peer, peer, peer4, own, own4)
}

// TestQuestions compares frames with octets laid out by hand from the RFCs.
func TestQuestions(t *testing.T) {
	c := newCard()
	if !c.Ask(1, own4, peer4) || !c.Ask(1, own6, peer6) {
		t.Fatal("not asked")
	}
	if c.Deadline() != 1 {
		t.Errorf("due at %d", c.Deadline())
	}
	frames := c.sent(1)
	if len(frames) != 2 {
		t.Fatalf("%d frames", len(frames))
	}
	arp := unhex(t, "ffffffffffff 525400000001 0806  0001 0800 06 04 0001 525400000001 0a090001 000000000000 0a090002"+
		strings.Repeat("00", 18))
	ns := unhex(t, "3333ffb2c3d4 525400000001 86dd  60000000 0020 3a ff fd090000000000000000000000000001"+
		" ff0200000000000000000001ffb2c3d4  87 00 0000 00000000 fd0900000000000000000000a1b2c3d4  01 01 525400000001")
	resum(ns)
	if !bytes.Equal(frames[0], arp) {
		t.Errorf("% x", frames[0])
	}
	if !bytes.Equal(frames[1], ns) {
		t.Errorf("% x\nwant\n% x", frames[1], ns)
	}
	if c.Deadline() != mono.Time(1).Add(time.Second) {
		t.Errorf("due at %d", c.Deadline())
	}
}

// TestAnswers is the life of an address: asked, answered, used without a question, asked again, gone.
func TestAnswers(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		c := newCard()
		src, dst := own4, peer4
		if v6 {
			src, dst = own6, peer6
		}
		yes, no := fmt.Sprintf("%s %x true", dst, peer), fmt.Sprintf("%s %x false", dst, [6]byte{})
		now := mono.Time(5)
		ask := func(want int) {
			t.Helper()
			if !c.Ask(now, src, dst) {
				t.Fatal("not asked")
			}
			if f := c.sent(now); len(f) != want {
				t.Errorf("%d frames, want %d", len(f), want)
			}
		}
		ask(1)
		ask(0) // the question is outstanding
		c.heard(t)
		c.Frame(now, answer(v6))
		c.heard(t, yes)
		c.Frame(now, answer(v6)) // once more: it only confirms
		c.heard(t)
		if c.Deadline() != 0 {
			t.Errorf("due at %d", c.Deadline())
		}
		// Known: no frame, and the result is not reported before Ask returns.
		if !c.Ask(now, src, dst) || len(c.said) != 0 || c.Deadline() != now {
			t.Error("a known address is not reported later")
		}
		if len(c.sent(now)) != 0 {
			t.Error("a frame for a known address")
		}
		c.heard(t, yes)
		// Confirmed by the station itself, it stays known.
		now = now.Add(valid - 1)
		if v6 {
			c.Frame(now, ndFrame([6]byte{0x33, 0x33, 0xff, 0, 0, 1}, peer, peer6, netip.MustParseAddr("ff02::1:ff00:1"),
				135, 0, own6, option(1, peer)...))
		} else {
			c.Frame(now, arpFrame(1, broadcast, peer, peer, peer4, [6]byte{}, own4))
		}
		now = now.Add(valid - 1)
		ask(0)
		c.heard(t, yes)
		// Another station claims the address: the owner gets a new question.
		if v6 {
			c.Frame(now, ndFrame([6]byte{0x33, 0x33, 0, 0, 0, 1}, other, peer6, netip.MustParseAddr("ff02::1"), 136, 0x20,
				peer6, option(2, other)...))
		} else {
			c.Frame(now, arpFrame(2, broadcast, other, other, peer4, broadcast, peer4))
		}
		c.heard(t)
		ask(1)
		c.Frame(now, answer(v6))
		c.heard(t, yes)
		// Silence.
		now = now.Add(valid)
		ask(1)
		for i := range 2 {
			now = now.Add(interval - 1)
			if c.sent(now) != nil {
				t.Error("too early")
			}
			if now = now.Add(1); c.Deadline() != now || len(c.sent(now)) != 1 {
				t.Errorf("repetition %d is not sent", i)
			}
			c.heard(t)
		}
		if now = now.Add(interval); c.Deadline() != now || c.sent(now) != nil {
			t.Error("a fourth frame")
		}
		c.heard(t, no)
		if c.Deadline() != 0 {
			t.Errorf("due at %d", c.Deadline())
		}
		c.Frame(now, answer(v6)) // too late
		c.heard(t)
		ask(1)
		c.Frame(now, answer(v6))
		c.heard(t, yes)
		want := Counters{Questions: 6, Answers: 3, Confirmed: 2, Doubted: 1, Unreachable: 1, Unsolicited: 1}
		if s := c.Counters(); s != want {
			t.Errorf("%+v", s)
		}
	}
}

// TestHostileFrames: nothing but the right answer ends a question, and nothing else is reported.
func TestHostileFrames(t *testing.T) {
	group := [6]byte{0x33, 0x33, 0, 0, 0, 1}
	all := netip.MustParseAddr("ff02::1")
	patch := func(f []byte, at int, v byte) []byte {
		f = bytes.Clone(f)
		f[at] = v
		return f
	}
	nd := func(at int, v byte) []byte {
		f := patch(answer(true), at, v)
		resum(f)
		return f
	}
	for name, f := range map[string][]byte{
		"no frame":                    {},
		"short ARP":                   answer(false)[:41],
		"another hardware type":       patch(answer(false), 15, 6),
		"another protocol":            patch(answer(false), 17, 1),
		"hardware length":             patch(answer(false), 18, 8),
		"protocol length":             patch(answer(false), 19, 16),
		"another operation":           patch(answer(false), 21, 3),
		"ARP request":                 arpFrame(1, own, peer, peer, peer4, own, own4),
		"another Ethernet source":     arpFrame(2, own, other, peer, peer4, own, own4),
		"a group's MAC":               arpFrame(2, own, [6]byte{1, 0, 0x5e, 1, 1, 1}, [6]byte{1, 0, 0x5e, 1, 1, 1}, peer4, own, own4),
		"broadcast MAC":               arpFrame(2, own, broadcast, broadcast, peer4, own, own4),
		"zero MAC":                    arpFrame(2, own, [6]byte{}, [6]byte{}, peer4, own, own4),
		"the card's MAC":              arpFrame(2, own, own, own, peer4, own, own4),
		"broadcast reply":             arpFrame(2, broadcast, peer, peer, peer4, own, own4),
		"to another station":          arpFrame(2, other, peer, peer, peer4, own, own4),
		"for another station":         arpFrame(2, own, peer, peer, peer4, other, own4),
		"to another address":          arpFrame(2, own, peer, peer, peer4, own, netip.MustParseAddr("10.9.0.7")),
		"about another address":       arpFrame(2, own, peer, peer, netip.MustParseAddr("10.9.0.7"), own, own4),
		"gratuitous":                  arpFrame(2, broadcast, peer, peer, peer4, broadcast, peer4),
		"with a tag":                  append(append(bytes.Clone(answer(false)[:12]), 0x81, 0, 0, 5), answer(false)[12:]...),
		"short advertisement":         answer(true)[:77],
		"cut option":                  answer(true)[:85],
		"hop limit":                   nd(21, 254),
		"code":                        nd(55, 1),
		"checksum":                    patch(answer(true), 57, answer(true)[57]^1),
		"unsolicited":                 nd(58, 0x20),
		"option of length zero":       nd(79, 0),
		"option of length two":        nd(79, 2),
		"another option":              nd(78, 1),
		"another link-layer address":  nd(85, 3),
		"IP version":                  nd(14, 0x40),
		"length of IP":                patch(answer(true), 19, 200),
		"small length of IP":          patch(answer(true), 19, 23),
		"another kind":                nd(54, 137),
		"without an option":           ndFrame(own, peer, peer6, own6, 136, 0x60, peer6),
		"to another card":             ndFrame(other, peer, peer6, own6, 136, 0x60, peer6, option(2, peer)...),
		"to another IPv6 address":     ndFrame(own, peer, peer6, peer6, 136, 0x60, peer6, option(2, peer)...),
		"solicited to all":            ndFrame(group, peer, peer6, all, 136, 0x60, peer6, option(2, peer)...),
		"unsolicited to all":          ndFrame(group, peer, peer6, all, 136, 0x20, peer6, option(2, peer)...),
		"about another IPv6 address":  ndFrame(own, peer, peer6, own6, 136, 0x60, own6, option(2, peer)...),
		"about a group":               ndFrame(own, peer, peer6, own6, 136, 0x60, all, option(2, peer)...),
		"from a group":                ndFrame(own, group, peer6, own6, 136, 0x60, peer6, option(2, group)...),
		"solicitation":                ndFrame(own, peer, peer6, own6, 135, 0x60, own6, option(1, peer)...),
		"solicitation, as an answer":  ndFrame(own, peer, peer6, own6, 135, 0x60, peer6, option(2, peer)...),
		"link-layer address, as ours": ndFrame(own, own, peer6, own6, 136, 0x60, peer6, option(2, own)...),
	} {
		c := newCard()
		c.Ask(1, own4, peer4)
		c.Ask(1, own6, peer6)
		c.Frame(1, answer(false)) // before the question left
		c.Frame(1, answer(true))
		c.sent(1)
		c.Frame(2, f)
		if len(c.said) != 0 {
			t.Errorf("%s: reported %q", name, c.said)
		}
		c.Frame(2, answer(false))
		c.Frame(2, answer(true))
		if len(c.said) != 2 {
			t.Errorf("%s: the right answers report %q", name, c.said)
		}
		// Now both are known: the frame changes neither.
		c.said = nil
		c.Frame(3, f)
		for i, dst := range []netip.Addr{peer4, peer6} {
			e := c.find(dst)
			if e == nil || e.mac != peer || !e.known {
				t.Errorf("%s: entry %d is %+v", name, i, e)
			}
		}
		c.heard(t)
	}
}

// TestBounds: the table has a bound; outstanding questions are not given up for new ones.
func TestBounds(t *testing.T) {
	c := newCard()
	at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 8, byte(i >> 8), byte(i)}) }
	for i := range MaxEntries {
		if !c.Ask(1, own4, at(i+1)) {
			t.Fatalf("question %d is refused", i)
		}
	}
	if c.Ask(1, own4, peer4) || c.Counters().TableFull != 1 {
		t.Error("one question too many is taken")
	}
	if n := len(c.sent(1)); n != MaxEntries {
		t.Errorf("%d frames", n)
	}
	for i := range MaxEntries {
		c.Frame(mono.Time(2+i), arpFrame(2, own, peer, peer, at(i+1), own, own4))
	}
	if len(c.said) != MaxEntries {
		t.Errorf("%d results", len(c.said))
	}
	c.said = nil
	if !c.Ask(300, own4, peer4) || c.find(at(1)) != nil || c.find(at(2)) == nil {
		t.Error("the address that was confirmed least of late did not give way")
	}
	again := arpFrame(2, own, peer, peer, at(2), own, own4)
	if n := testing.AllocsPerRun(100, func() {
		c.Ask(400, own4, at(2))
		c.Frame(400, again)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	c.Reset()
	if c.Deadline() != 0 || c.sent(1000) != nil {
		t.Error("something is left after a reset")
	}
	c.heard(t)
	// What has no MAC of one station is not asked for.
	for _, p := range [][2]string{{"10.9.0.1", "224.0.0.1"}, {"10.9.0.1", "255.255.255.255"}, {"10.9.0.1", "0.0.0.0"},
		{"10.9.0.1", "127.0.0.1"}, {"10.9.0.1", "10.9.0.1"}, {"10.9.0.1", "fd09::1"}, {"0.0.0.0", "10.9.0.1"},
		{"fd09::1", "ff02::1"}, {"fd09::1", "::"}, {"fd09::1", "::1"}, {"ff02::1", "fd09::1"}, {"fd09::1", "fe80::1%1"}} {
		if c.Ask(1, netip.MustParseAddr(p[0]), netip.MustParseAddr(p[1])) {
			t.Errorf("%v is asked", p)
		}
	}
	if c.Ask(1, netip.Addr{}, netip.Addr{}) || c.Deadline() != 0 {
		t.Error("nothing is asked")
	}
	c.SetMAC([6]byte{})
	if c.Ask(1, own4, peer4) {
		t.Error("a card without a MAC asks")
	}
}

// TestAskWithinResult: a result may lead to another question.
func TestAskWithinResult(t *testing.T) {
	var r *Resolver
	asked := 0
	r = New(own, func(ip netip.Addr, _ [6]byte, ok bool) {
		if asked++; asked < 3 {
			r.Ask(10, own4, netip.MustParseAddr("10.9.0.9"))
		}
	})
	r.Ask(1, own4, peer4)
	buf := make([]byte, MaxFrame)
	r.Next(1, buf)
	r.Frame(10, answer(false))
	if f, ok := r.Next(10, buf); !ok || f[41] != 9 || asked != 1 {
		t.Errorf("%v, %d results", ok, asked)
	}
}

// FuzzFrame: whatever arrives, a question is only answered by the station that the frame names, each Ask has one
// result, and the table keeps its bound.
func FuzzFrame(f *testing.F) {
	f.Add(answer(false), uint16(0), byte(0))
	f.Add(answer(true), uint16(20), byte(1))
	f.Add(arpFrame(1, broadcast, peer, peer, peer4, [6]byte{}, own4), uint16(4000), byte(2))
	f.Add(ndFrame(own, peer, peer6, own6, 135, 0, own6, option(1, peer)...), uint16(1), byte(3))
	f.Fuzz(func(t *testing.T, frame []byte, later uint16, mode byte) {
		results := 0
		var now mono.Time = 1
		var at []byte
		r := New(own, func(ip netip.Addr, mac [6]byte, ok bool) {
			results++
			if ok && (ip != peer4 && ip != peer6 || mac[0]&1 != 0 || mac == [6]byte{} || mac == own) {
				t.Fatalf("%s is at %x", ip, mac)
			}
			if ok && at != nil && [6]byte(at[6:]) != mac {
				t.Fatalf("a frame from %x names %x", at[6:12], mac)
			}
		})
		want := 0
		ask := func() {
			for _, p := range [][2]netip.Addr{{own4, peer4}, {own6, peer6}} {
				if e := r.find(p[1]); e == nil || !e.owed {
					want++
				}
				if !r.Ask(now, p[0], p[1]) {
					t.Fatal("refused")
				}
			}
		}
		buf := make([]byte, MaxFrame)
		turn := func() {
			at = nil
			for range 10 {
				if _, ok := r.Next(now, buf); !ok {
					break
				}
			}
		}
		hear := func(f []byte) {
			before := bytes.Clone(f)
			if at = f; len(f) < ether.HeaderLen {
				at = nil
			}
			r.Frame(now, f)
			if !bytes.Equal(f, before) {
				t.Fatal("the frame was changed")
			}
		}
		ask()
		turn()
		if mode&1 != 0 {
			hear(answer(mode&2 != 0))
		}
		hear(frame)
		now = now.Add(time.Duration(later) * time.Millisecond)
		turn()
		hear(frame)
		ask()
		turn()
		hear(frame)
		for range 2 * tries {
			now = now.Add(interval)
			turn()
		}
		if results != want || r.Deadline() != 0 || len(r.table) > MaxEntries {
			t.Fatalf("%d results of %d questions, due at %d", results, want, r.Deadline())
		}
	})
}

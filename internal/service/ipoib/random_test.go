// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/wire"
)

// TestH55_Random: links under random events never lose the order of a flow,
// never leak, and never exceed their bounds (subnet.step checks after each
// event). Purging meets sending and completions in every order: entries and address vectors are
// counted by their users. When all is well again they talk (S-13).
func TestH55_Random(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newSubnet(t)
		var ip [3]netip.Addr
		for i := range ip {
			ip[i] = netip.AddrFrom4([4]byte{10, 20, 0, byte(1 + i)})
			n := s.add(fmt.Sprint("ib", i, "_1_14"), ib.LID(5+i), ib.MakeGID(ib.DefaultGIDPrefix, ib.GUID(100+i)),
				ib.QPN(0x50+i), "sq_depth=128", "rq_depth=64", "timeout=20", "mcast_timeout=200",
				"tx_copybreak="+strconv.Itoa(30+500*i), "max_neigh=16")
			n.mappable = i == 1
			n.start()
			n.l.SetAddrs(s.now, []netip.Prefix{netip.PrefixFrom(ip[i], 24)}, nil)
		}
		groups := []netip.Addr{netip.MustParseAddr("224.0.0.1"), netip.MustParseAddr("239.1.1.1"),
			netip.MustParseAddr("239.1.1.2")}
		joined := map[int][]netip.Addr{}
		seq, calls, asked := 0, 0, 0
		opened := [3]bool{true, true, true}
		pick := func() (int, *node) {
			i := rapid.IntRange(0, 2).Draw(rt, "node")
			return i, s.nodes[i]
		}
		order := func() {
			for i, n := range s.nodes {
				last := map[string]int{}
				for _, text := range n.texts() {
					flow, number, _ := strings.Cut(text, " ")
					v, err := strconv.Atoi(strings.TrimRight(number, "."))
					if err != nil || v <= last[flow] {
						rt.Fatalf("node %d got %q after %d", i, text, last[flow])
					}
					last[flow] = v
				}
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"send": func(rt *rapid.T) {
				i, n := pick()
				dst := rapid.SampledFrom(append(slices.Clone(ip[:]), append(groups, netip.MustParseAddr("10.20.0.77"),
					netip.MustParseAddr("10.20.0.255"))...)).Draw(rt, "dst")
				for range rapid.IntRange(1, 200).Draw(rt, "packets") {
					seq++
					n.send(ip[i], dst, fmt.Sprintf("%d>%v %d%s", i, dst, seq, strings.Repeat(".", seq%100)))
				}
			},
			"time": func(rt *rapid.T) {
				s.run(time.Duration(rapid.SampledFrom([]int{0, 1, 20, 300, 3000, 70000}).Draw(rt,
					"ms")) * time.Millisecond)
			},
			"step": func(rt *rapid.T) { s.step() },
			"sa": func(rt *rapid.T) {
				s.silent, s.refuse = false, 0
				switch rapid.IntRange(0, 4).Draw(rt, "how") {
				case 0:
					s.silent = true
				case 1:
					s.refuse = rapid.SampledFrom([]mad.Status{mad.StatusSARequest, mad.StatusSANoResources,
						mad.StatusSAInsufficient,
						mad.StatusBusy}).Draw(rt, "status")
				case 2:
					s.delay = time.Duration(rapid.IntRange(0, 2000).Draw(rt, "delay")) * time.Millisecond
				case 3:
					s.forget()
					for _, n := range s.nodes {
						n.event(nil, ib.EventReregister)
					}
				}
			},
			"port": func(rt *rapid.T) {
				_, n := pick()
				events := rapid.SampledFrom([][]ib.Event{nil, {ib.EventReregister}, {ib.EventSMChange}}).Draw(rt,
					"events")
				switch rapid.IntRange(0, 4).Draw(rt, "what") {
				case 0:
					n.event(func(p *Port) {
						p.State = rapid.SampledFrom([]ib.PortState{ib.PortDown, ib.PortInit, ib.PortActive}).Draw(rt,
							"state")
					}, events...)
				case 1:
					n.event(func(p *Port) {
						p.PKeys = rapid.SampledFrom([][]ib.PKey{{0xffff}, {testPKey}, {0xffff, 0, testPKey}}).Draw(rt,
							"keys")
					}, events...)
				case 2:
					n.event(func(p *Port) { p.LID ^= 0x100 }, events...)
				default:
					n.event(nil, events...)
				}
			},
			"stall":  func(rt *rapid.T) { _, n := pick(); n.stall = !n.stall },
			"device": func(rt *rapid.T) { _, n := pick(); n.full = !n.full },
			"fail": func(rt *rapid.T) {
				_, n := pick()
				n.fail[rapid.SampledFrom([]string{"create ah", "attach", "qkey", "init ud", "pkey index"}).Draw(rt,
					"call")] = rapid.IntRange(0, 3).Draw(rt, "times")
				n.limit = rapid.SampledFrom([]int{0, 1, 50}).Draw(rt, "limit")
				n.status = rapid.SampledFrom([]ib.Status{0, 0, ib.LocQPOpErr}).Draw(rt, "status")
			},
			"open": func(rt *rapid.T) {
				if i, n := pick(); opened[i] {
					n.l.Close(s.now)
					opened[i] = false
				} else {
					n.l.Open(s.now)
					opened[i] = true
				}
			},
			"group": func(rt *rapid.T) {
				i, n := pick()
				g := rapid.SampledFrom(groups).Draw(rt, "group")
				if k := slices.Index(joined[i], g); k >= 0 {
					joined[i] = slices.Delete(joined[i], k, k+1)
					n.l.LeaveGroup(s.now, g)
				} else if n.l.JoinGroup(s.now, g) == nil {
					joined[i] = append(joined[i], g)
				}
			},
			"notice": func(rt *rapid.T) {
				_, n := pick()
				gid := rapid.SampledFrom([]ib.GID{s.nodes[0].port.GID, s.nodes[1].port.GID,
					n.l.groups.mgidOf(groups[1]),
					n.l.groups.broadcast.mgid}).Draw(rt, "gid")
				n.l.Notice(s.now, rapid.SampledFrom([]mad.TrapNumber{64, 65, 66, 67}).Draw(rt, "trap"), gid)
			},
			"path": func(rt *rapid.T) {
				_, n := pick()
				var p PathInfo
				err := n.l.GetPathAsync(s.now, rapid.SampledFrom([]netip.Addr{ip[0], ip[1],
					netip.MustParseAddr("10.20.0.77")}).Draw(rt, "ip"), &p, func(error, *PathInfo, any) { calls++ },
					nil)
				if err == ErrAgain {
					asked++
				}
			},
			"purge": func(rt *rapid.T) {
				_, n := pick()
				switch rapid.IntRange(0, 3).Draw(rt, "what") {
				case 0:
					n.l.PurgeShadow(s.now, wire.HWAddr{})
				case 1:
					n.l.FlushPaths()
				case 2:
					n.l.Engine().Flush(s.now)
				case 3:
					n.l.QPError(s.now)
				}
			},
			"": func(rt *rapid.T) {
				for _, n := range s.nodes {
					n.check()
				}
				order()
			},
		})
		// All is well again.
		s.silent, s.refuse, s.delay = false, 0, 0
		for i, n := range s.nodes {
			n.stall, n.full, n.limit, n.status = false, false, 0, 0
			clear(n.fail)
			n.event(func(p *Port) { p.State, p.PKeys = ib.PortActive, []ib.PKey{0xffff, testPKey} })
			if !opened[i] {
				n.l.Open(s.now)
			}
		}
		s.run(2 * time.Minute)
		order()
		for i, n := range s.nodes {
			if !n.carrier {
				rt.Fatalf("node %d has no carrier: %s", i, n.l.reason)
			}
			if in := n.l.Info(); in.Pending != 0 || in.SendFree != in.QueueLen || in.RecvPosted != in.RQDepth {
				rt.Fatalf("node %d: %+v", i, in)
			}
		}
		for i, n := range s.nodes {
			n.got = nil
			for j := range ip {
				if i != j {
					n.send(ip[i], ip[j], "finally")
				}
			}
		}
		s.run(5 * time.Second)
		for i, n := range s.nodes {
			if got := n.texts(); !slices.Equal(got, []string{"finally", "finally"}) {
				rt.Fatalf("node %d got %v", i, got)
			}
			n.l.Stop(s.now)
		}
		s.run(10 * time.Second)
		for _, n := range s.nodes {
			n.gone()
		}
		if calls != asked {
			rt.Fatalf("%d callbacks of %d", calls, asked)
		}
		for gid, g := range s.groups {
			if len(g.members) != 0 {
				rt.Fatalf("group %v has members %v", gid, g.members)
			}
		}
	})
}

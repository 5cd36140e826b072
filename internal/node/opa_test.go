// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
	"time"

	"weft/internal/control/config"
	"weft/internal/fabric/vswitch"
	"weft/internal/proto/condtest"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	native "weft/internal/proto/wire"
)

// port16 is a function's user of 16B packets, as an Ethernet port is one.
type port16 struct {
	*running
	lid  ib.LID
	mu   sync.Mutex
	came map[uint16][][]byte // by entropy, which numbers packets here
}

// row is three nodes with trunks from each to the next; the first manages the
// subnet.
func row(t *testing.T) (nodes []*port16) {
	t.Helper()
	ports := []int{condtest.Port(t), condtest.Port(t), condtest.Port(t)}
	for i := range ports {
		r := run(t, func(c *config.Config) {
			c.Fabric, c.IPoIB, c.Store, c.TrunkPort = true, false, config.StoreMemory, ports[i]
			if i > 0 {
				c.SM = config.SMOff
				c.Peers = append(c.Peers, fmt.Sprintf("127.0.0.1:%d", ports[i-1]))
			}
			if i < len(ports)-1 {
				c.Peers = append(c.Peers, fmt.Sprintf("127.0.0.1:%d", ports[i+1]))
			}
		})
		nodes = append(nodes, &port16{running: r, came: map[uint16][][]byte{}})
	}
	eventually(t, "all ports are active", func() bool {
		ok := true
		for _, n := range nodes {
			n.node.sub.Do(func() {
				c := n.node.sub.Port(1)
				ok = ok && c.Agent.Port(1).PortState == ib.PortActive
				n.lid = c.Agent.LID()
			})
		}
		return ok
	})
	for _, n := range nodes {
		if err := n.node.lanes.First().Query(func() {
			n.node.lanes.First().Net.Fabric.SetTaker(func(_ mono.Time, function uint16, h *native.Header16,
				p []byte) bool {
				n.mu.Lock()
				defer n.mu.Unlock()
				n.came[h.Entropy] = append(n.came[h.Entropy], bytes.Clone(p))
				return function == 1
			})
		}); err != nil {
			t.Fatal(err)
		}
	}
	return nodes
}

// send sends a packet as the function's user would.
func (n *port16) send(p []byte) {
	n.t.Helper()
	l, f := n.node.lanes.First(), n.node.lanes.First().Net.Fabric
	if err := l.Query(func() { f.Send16(l.Now(), p); f.Flush(l.Now()) }); err != nil {
		n.t.Fatal(err)
	}
}

func (n *port16) got(number uint16) [][]byte {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.came[number]
}

// dropped returns what the switch of a node dropped on account of partition keys.
func (n *port16) dropped() (v uint64) {
	n.t.Helper()
	if err := n.node.lanes.First().Query(func() {
		c := n.node.lanes.First().Net.Fabric.Counters()
		v = c.DropRoute[vswitch.PKeyIn] + c.DropRoute[vswitch.PKeyOut]
	}); err != nil {
		n.t.Fatal(err)
	}
	return v
}

// TestPackets16: functions of three nodes send each other 16B packets over the
// trunks of a subnet under a manager: by LID, to a group joined in its
// administration, and with a partition key that is not theirs.
func TestPackets16(t *testing.T) {
	nodes := row(t)
	a, b, c := nodes[0], nodes[1], nodes[2]

	mgid := ib.GID{0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 15: 7}
	mask := mad.CompMCMGID | mad.CompMCPortGID | mad.CompMCQKey | mad.CompMCTClass | mad.CompMCPKey | mad.CompMCSL | mad.CompMCFlowLabel | mad.CompMCJoinState
	var mlid ib.LID
	for _, n := range nodes {
		f := n.node.funcs.named(firstNative).a
		join := mad.MCMemberRecord{MGID: mgid, PortGID: f.Port().GIDs[0].GID, QKey: 5, PKey: ib.DefaultPKey,
			JoinState: mad.JoinFull}
		answers := make(chan mad.SA, 64)
		user := n.node.sub.OpenUser(f.Number(), func(_ mono.Time, _ uint32, m *mad.SA) {
			select {
			case answers <- *m:
			default: // one is enough
			}
		}, nil)
		ask := mad.SA{SAHeader: mad.SAHeader{Header: mad.Header{Method: mad.MethodSet,
			AttributeID: mad.AttrMCMemberRecord}, ComponentMask: mask}}
		copy(ask.Data[:], join.Append(nil))
		var got mad.MCMemberRecord
		// the path may not be set up yet, and only this loop repeats the request
		eventually(t, "a port joins", func() bool {
			user.Request(1, &ask)
			select {
			case v := <-answers:
				got.Parse(v.Data[:])
				return v.Status == mad.StatusOK
			case <-time.After(100 * time.Millisecond):
				return false
			}
		})
		mlid = got.MLID
	}
	if !mlid.IsMulticast() {
		t.Fatalf("the group has LID %#x", mlid)
	}
	eventually(t, "the tree of the group", func() bool {
		ok := true
		for i, n := range nodes {
			ok = ok && n.node.sub.Table.Load().Members(mlid).Len() == []int{2, 3, 2}[i]
		}
		return ok
	})

	number := uint16(0)
	build := func(from *port16, dlid uint32, key ib.PKey, frame int) []byte {
		number++
		p := bytes.Repeat([]byte{0xa5}, native.Len16(native.Ethernet16Len+frame))
		h := native.Header16{SLID: uint32(from.lid), DLID: dlid, Length: uint16(len(p) / 8), L4: native.L4Ethernet,
			PKey: key, Entropy: number}
		h.Put(p)
		native.PutEthernet16(p[native.Header16Len:], 0x321)
		for i := range frame {
			p[native.Header16Len+native.Ethernet16Len+i] = byte(i*5 + frame)
		}
		native.Seal16(p, native.Ethernet16Len+frame)
		return p
	}
	// arrive sends packets until one has come to all, for a trunk may lose some.
	// Each comes once, and equal but for the switches that it passed.
	arrive := func(from *port16, dlid uint32, frame int, hops map[*port16]uint8) {
		t.Helper()
		for end := time.Now().Add(limit); ; {
			p := build(from, dlid, ib.DefaultPKey, frame)
			from.send(p)
			all := func() bool {
				for n := range hops {
					if len(n.got(number)) == 0 {
						return false
					}
				}
				return true
			}
			for wait := time.Now().Add(time.Second); !all() && time.Now().Before(wait); {
				time.Sleep(time.Millisecond)
			}
			for _, n := range nodes {
				got := n.got(number)
				want := bytes.Clone(p)
				age, member := hops[n]
				native.SetAge16(want, age)
				if len(got) > 1 || len(got) == 1 && (!member || !bytes.Equal(got[0], want)) {
					t.Fatalf("%d octets from %d to %#x: %d has %d of % x", frame, from.lid, dlid, n.lid, len(got), got)
				}
			}
			if all() {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%d octets from %d to %#x do not arrive", frame, from.lid, dlid)
			}
		}
	}
	for _, frame := range []int{60, 61, 1514, 9014, native.MaxPayload16 - native.Ethernet16Len} {
		arrive(a, uint32(b.lid), frame, map[*port16]uint8{b: 0})
		arrive(a, uint32(c.lid), frame, map[*port16]uint8{c: 1})
		arrive(c, uint32(a.lid), frame, map[*port16]uint8{a: 1})
		arrive(a, vswitch.LIDTo24(mlid), frame, map[*port16]uint8{b: 0, c: 1})
		arrive(b, vswitch.LIDTo24(mlid), frame, map[*port16]uint8{a: 0, c: 0})
	}

	// A partition key that a's port does not have gets no further than a's switch,
	// where that enforces, or than c's.
	for _, at := range []*port16{a, c} {
		a.enforce(firstNative, at == a, false, ib.DefaultPKey)
		c.enforce(firstNative, false, at == c, ib.DefaultPKey)
		before := at.dropped()
		var foreign []uint16
		for n := range uint64(2) {
			// of some the trunk may lose
			eventually(t, "packets with a foreign partition key are dropped", func() bool {
				a.send(build(a, []uint32{uint32(c.lid), vswitch.LIDTo24(mlid)}[n], 0x8123, 60))
				foreign = append(foreign, number)
				return at.dropped() > before+n
			})
		}
		arrive(a, uint32(c.lid), 60, map[*port16]uint8{c: 1}) // behind them
		for _, i := range foreign {
			if len(c.got(i)) != 0 || at == a && len(b.got(i)) != 0 {
				t.Error("a packet with a foreign partition key arrived")
			}
		}
	}

	// Without an Ethernet port, packets for the function are a counted drop.
	f := b.node.lanes.First().Net.Fabric
	if err := b.node.lanes.First().Query(func() { f.SetTaker(nil) }); err != nil {
		t.Fatal(err)
	}
	eventually(t, "packets for a function without a port for them are counted", func() bool {
		a.send(build(a, uint32(b.lid), ib.DefaultPKey, 60))
		var n uint64
		if err := b.node.lanes.First().Query(func() { n = f.Counters().Drop16NoPort }); err != nil {
			t.Fatal(err)
		}
		return n > 0
	})
}

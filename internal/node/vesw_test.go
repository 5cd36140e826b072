// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/node/vesw"
	"weft/internal/proto/condtest"
	"weft/internal/proto/ether"
	"weft/internal/proto/ether/ethertest"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/problem"
	native "weft/internal/proto/wire"
	"weft/internal/service/vnic"
)

// plug is a segment: a test sends and reads its frames.
type plug struct {
	device vnic.Device // as it was made, guarded by mu as all that follows
	wake   func()
	news   func(vnic.SegmentEvent)

	mu     sync.Mutex
	event  vnic.SegmentEvent
	out    [][]byte // to be sent
	outOff []ether.Offload
	in     [][]byte // that came
	inOff  []ether.Offload
	takes  ether.Features
	room   int // frames that it still takes, if full
	full   bool
	broken error
	closed bool
}

func (p *plug) TryReadBatch(frames [][]byte, off []ether.Offload) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken != nil {
		return 0, p.broken
	}
	n := copy(frames, p.out)
	copy(off, p.outOff[:n])
	p.out, p.outOff = p.out[n:], p.outOff[n:]
	return n, nil
}

func (p *plug) WriteBatch(frames [][]byte, off []ether.Offload) (dropped int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range frames {
		if p.full {
			if p.room == 0 {
				return len(frames) - i
			}
			p.room--
		}
		p.in, p.inOff = append(p.in, bytes.Clone(frames[i])), append(p.inOff, off[i])
	}
	return 0
}

func (p *plug) Takes() ether.Features { p.mu.Lock(); defer p.mu.Unlock(); return p.takes }
func (p *plug) FD() int               { return -1 }
func (p *plug) Arm() bool             { p.mu.Lock(); defer p.mu.Unlock(); return len(p.out) > 0 || p.broken != nil }
func (p *plug) Close() error          { p.mu.Lock(); defer p.mu.Unlock(); p.closed = true; return nil }

// Configure is taken as an interface does: the MAC becomes that of the configuration, the MTU no more than it
// allows.
func (p *plug) Configure(d vnic.Device) {
	p.mu.Lock()
	if d.MAC != p.device.MAC {
		p.event.MAC = d.MAC
	}
	p.event.MTU = min(p.event.MTU, d.MaxMTU)
	p.device = d
	e := p.event
	p.mu.Unlock()
	p.news(e)
}

// tell makes the interface another.
func (p *plug) tell(change func(*vnic.SegmentEvent)) {
	p.mu.Lock()
	change(&p.event)
	e := p.event
	p.mu.Unlock()
	p.news(e)
}

func (p *plug) send(frame []byte, off ether.Offload) {
	p.mu.Lock()
	p.out, p.outOff = append(p.out, bytes.Clone(frame)), append(p.outOff, off)
	p.mu.Unlock()
	p.wake()
}

// came returns the frames that arrived, and forgets them.
func (p *plug) came() (frames [][]byte, off []ether.Offload) {
	p.mu.Lock()
	defer p.mu.Unlock()
	frames, off, p.in, p.inOff = p.in, p.inOff, nil, nil
	return frames, off
}

func (p *plug) set(f func()) { p.mu.Lock(); defer p.mu.Unlock(); f() }

const allOffloads = ether.FeatureCsum | ether.FeatureTSO4 | ether.FeatureTSO6 | ether.FeatureECN | ether.FeatureUSO4 | ether.FeatureUSO6

// veswNode is a node with ports that have plugs in place of interfaces.
type veswNode struct {
	*running
	mu    sync.Mutex
	plugs []*plug // in the order in which they were made
	fail  error   // instead
	tries []time.Time
}

// made returns the plug made n-th.
func (n *veswNode) made(i int) (p *plug) {
	n.t.Helper()
	eventually(n.t, "a segment is made", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		if i < len(n.plugs) {
			p = n.plugs[i]
		}
		return p != nil
	})
	return p
}

// veswPair is two nodes with a trunk, of which the first has two functions. Their ports are active.
func veswPair(t *testing.T) (nodes [2]*veswNode) {
	t.Helper()
	at := []int{condtest.Port(t), condtest.Port(t)}
	for i := range nodes {
		n := &veswNode{running: run(t, func(c *config.Config) {
			c.Fabric, c.Store, c.TrunkPort = true, config.StoreMemory, at[i]
			c.Peers = []string{fmt.Sprintf("127.0.0.1:%d", at[1-i])}
			if i == 1 {
				c.SM = config.SMOff
			}
		})}
		n.node.sub.Do(func() {
			n.node.vesw.Open = func(o vesw.Opening) (vnic.OpenSegment, string, error) {
				n.mu.Lock()
				defer n.mu.Unlock()
				n.tries = append(n.tries, time.Now())
				if n.fail != nil {
					return vnic.OpenSegment{}, "", n.fail
				}
				d := o.Device
				p := &plug{
					device: d,
					wake:   o.Wake,
					news:   o.Notify,
					takes:  allOffloads,
					event:  vnic.SegmentEvent{Up: true, MTU: d.MTU, MAC: d.MAC},
				}
				n.plugs = append(n.plugs, p)
				go o.Notify(p.event)
				name := fmt.Sprintf("plug%d", len(n.plugs)-1)
				if o.Request != nil {
					name = o.Request.Name
				}
				return vnic.OpenSegment{Segment: p, Control: p}, name, nil
			}
		})
		nodes[i] = n
	}
	if _, err := api.Call(context.Background(), nodes[0].cli, api.AddFunction,
		api.NewFunction{Name: "weft_ib1"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all ports are active", func() bool {
		ok := true
		for i, n := range nodes {
			n.node.sub.Do(func() {
				ok = ok && len(n.node.sub.Functions) == 2-i
				for _, c := range n.node.sub.Functions {
					ok = ok && c.Agent.Port(1).PortState == ib.PortActive && c.Agent.LID() != 0
				}
			})
		}
		return ok
	})
	for _, n := range nodes {
		n.node.sub.Do(func() {
			for number := range n.node.sub.Functions {
				n.node.sub.ServeEthernet(number, nil) // so that the Ethernet Manager leaves alone what tests set
			}
		})
	}
	return nodes
}

func (n *veswNode) lid(function uint16) (lid uint32) {
	n.node.sub.Do(func() { lid = uint32(n.node.sub.Port(function).Agent.LID()) })
	return lid
}

func (n *veswNode) mac(function, vesw uint16) [6]byte { return mad.VESWMAC(0, vesw, n.lid(function)) }

// vport makes a port what an Ethernet Manager would make it, in the default partition or that of key.
func (n *veswNode) vport(function uint16, vport uint8, vesw uint16, mtu int, key ...ib.PKey) {
	n.t.Helper()
	lid := n.lid(function)
	n.node.sub.Do(func() {
		c := mad.DefaultVESWPortInfo()
		c.VESW.VESWID, c.VESW.PKey, c.VESW.EthMTU = vesw, ib.DefaultPKey, uint16(mtu)
		for _, k := range key {
			c.VESW.PKey = k
		}
		c.Port.EncapSLID, c.Port.BaseMAC, c.Port.ConfigState = lid, mad.VESWMAC(0, vesw, lid), mad.VESWForwarding
		if err := n.node.vesw.Ports(function).SetInfo(n.node.now(), vport, &c); err != nil {
			n.t.Error(err)
		}
	})
}

// forwards waits until a port carries frames.
func (n *veswNode) forwards(name string) {
	n.t.Helper()
	eventually(n.t, name+" forwards", func() bool { return n.port(name).State == api.StateForwarding })
}

func (n *veswNode) port(name string) api.VESWInterface {
	n.t.Helper()
	list, err := api.Get(context.Background(), n.cli, api.ListVESWInterfaces)
	if err != nil {
		n.t.Fatal(err)
	}
	i := slices.IndexFunc(list, func(v api.VESWInterface) bool { return v.Name == name })
	if i < 0 {
		return api.VESWInterface{}
	}
	return list[i]
}

func (n *veswNode) stat(name, counter string) (v uint64) {
	n.t.Helper()
	list, err := api.Call(context.Background(), n.cli, api.ListVESWCounters, "")
	if err != nil {
		n.t.Fatal(err)
	}
	i := slices.IndexFunc(list, func(c api.Counter) bool { return c.Instance == name && c.Name == counter })
	if i < 0 {
		n.t.Fatalf("no counter %s of %s: %+v", counter, name, list)
	}
	return list[i].Value
}

// TestVESWFrames: segments of a port reach one of another node in frames of the MTU, joined
// where the segment accepts that, and one of this node as they are; each frame counts once.
func TestVESWFrames(t *testing.T) {
	nodes := veswPair(t)
	a, b := nodes[0], nodes[1]
	a.vport(1, 3, 5, 1500)
	b.vport(1, 0, 5, 1500)
	here, there := a.made(0), b.made(0)
	a.vport(2, 0, 5, 1500)
	near := a.made(1)
	for _, name := range []string{"plug0", "plug1"} {
		a.forwards(name)
	}
	b.forwards("plug0")

	const size = 60000
	arrived := func(p *plug, octets int) (frames [][]byte, off []ether.Offload) {
		t.Helper()
		eventually(t, "what was sent arrives", func() bool {
			f, o := p.came()
			frames, off = append(frames, f...), append(off, o...)
			n := 0
			for _, f := range frames {
				n += len(f) - 54
			}
			return n >= octets
		})
		return frames, off
	}
	// To another node. A trunk loses packets when a node gets no processor for long: then once more.
	const cut = (size + 1447) / 1448
	across := func(frame []byte, off ether.Offload) (frames [][]byte, offs []ether.Offload) {
		t.Helper()
		for end := time.Now().Add(limit); time.Now().Before(end); {
			there.came()
			sent, rcvd, octets := a.stat(
				"plug0",
				"tx_packets",
			), b.stat(
				"plug0",
				"rx_packets",
			), b.stat(
				"plug0",
				"rx_bytes",
			)
			here.send(frame, off)
			frames, offs = nil, nil
			n := 0
			for wait := time.Now().Add(limit / 10); n < size && time.Now().Before(wait); time.Sleep(time.Millisecond) {
				f, o := there.came()
				frames, offs = append(frames, f...), append(offs, o...)
				for _, f := range f {
					n += len(f) - 54
				}
			}
			if n == size && a.stat("plug0", "tx_packets") == sent+cut && b.stat("plug0", "rx_packets") == rcvd+cut &&
				b.stat("plug0", "rx_bytes") == octets+size+cut*(54+4) {
				return frames, offs
			}
		}
		t.Fatal("a segment does not arrive whole, and counted")
		return nil, nil
	}
	frame, off := ethertest.TCPSegment(b.mac(1, 5), a.mac(1, 5), size, 1448)
	frames, offs := across(frame, off)
	if got := ethertest.Payloads(t, frames); !bytes.Equal(got, frame[54:]) {
		t.Error("the payload is another")
	}
	joined := slices.IndexFunc(offs, func(o ether.Offload) bool { return o.GSO == ether.GSOTCPv4 && o.GSOSize == 1448 })
	if joined < 0 {
		t.Errorf("nothing was joined: %d frames, %+v", len(frames), offs)
	}
	// To a segment without offloads: whole frames with good checksums.
	there.set(func() { there.takes = 0 })
	if frames, offs = across(frame, off); len(frames) != cut ||
		slices.ContainsFunc(offs, func(o ether.Offload) bool { return o != ether.Offload{} }) {
		t.Errorf("%d frames, %+v", len(frames), offs)
	}
	ethertest.Payloads(t, frames)
	sums := func(frames [][]byte) {
		t.Helper()
		for _, f := range frames {
			pseudo := append(bytes.Clone(f[26:34]), 0, 6, byte((len(f)-34)>>8), byte(len(f)-34))
			if len(f)%2 != 0 {
				f = append(f, 0)
			}
			if ether.Checksum(append(pseudo, f[34:]...)) != 0 || ether.Checksum(f[14:34]) != 0 {
				t.Fatal("a checksum is wrong")
			}
		}
	}
	sums(frames)
	sent := a.stat("plug0", "tx_packets")
	// Within the node: as it is, or cut for a segment without the offload.
	frame, off = ethertest.TCPSegment(a.mac(2, 5), a.mac(1, 5), size, 1448)
	here.send(frame, off)
	if frames, offs = arrived(near, size); len(frames) != 1 || !bytes.Equal(frames[0], frame) || offs[0] != off {
		t.Errorf("%d frames, %+v", len(frames), offs)
	}
	near.set(func() { near.takes = 0 })
	here.send(frame, off)
	if frames, offs = arrived(near, size); len(frames) != cut {
		t.Errorf("%d frames, %+v", len(frames), offs)
	}
	ethertest.Payloads(t, frames)
	sums(frames)
	eventually(t, "frames within the node count as such", func() bool {
		return a.stat("plug1", "rx_packets") == 2*cut && a.stat("plug0", "tx_packets") == sent+2*cut
	})

	// What finds no room is lost, and told as that.
	near.set(func() { near.full, near.room = true, 10 })
	here.send(frame, off)
	eventually(t, "what is lost is counted", func() bool {
		return a.stat("plug1", "rx_fifo_errors") == cut-10 && a.stat("plug1", "rx_packets") == 2*cut+10
	})
	// What a segment must not say is refused, by its reason.
	bad := off
	bad.GSO = ether.GSOUFO
	here.send(frame, bad)
	eventually(t, "it is refused", func() bool { return a.stat("plug0", "tx_"+ether.SegmentKind.String()) == 1 })
	// Longer than the VESW allows.
	frame, off = ethertest.TCPSegment(b.mac(1, 5), a.mac(1, 5), 1600, 1600)
	here.send(frame, off)
	eventually(t, "it is refused", func() bool { return a.stat("plug0", "tx_oversize") == 1 })
}

// TestVESWApart: a port in another VESW gets nothing, whatever the frame's MAC, and the wrong
// identifier is counted.
func TestVESWApart(t *testing.T) {
	nodes := veswPair(t)
	a, b := nodes[0], nodes[1]
	a.vport(1, 0, 0x105, 1500)
	b.vport(1, 0, 5, 1500) // equal in eight bits
	b.vport(1, 1, 0x106, 1500)
	here, there, third := a.made(0), b.made(0), b.made(1)
	a.forwards("plug0")
	b.forwards("plug0")
	b.forwards("plug1")
	frame, off := ethertest.TCPSegment(b.mac(1, 0x105), a.mac(1, 0x105), 100, 1448)
	eventually(t, "the packet is refused", func() bool { // it may be lost on its way
		here.send(frame, off)
		return b.stat("weft_ib0", "rx_bad_veswid") > 0
	})
	for _, p := range []*plug{there, third} {
		if f, _ := p.came(); len(f) > 0 {
			t.Error("a frame of another VESW was delivered")
		}
	}
	if c := b.counter(api.ScopeVESW, "rx_bad_veswid"); c == 0 {
		t.Errorf("%d counted", c)
	}
}

// TestVESWForged: a hostile node, which builds its packets itself, reaches no port of a VESW by a key that it
// has. That it can use no other is what TestPackets16 shows.
func TestVESWForged(t *testing.T) {
	nodes := veswPair(t)
	hostile, b := nodes[0], nodes[1]
	b.vport(1, 0, 5, 1500, 0xc005)
	there := b.made(0)
	b.forwards("plug0")
	frame, _ := ethertest.TCPSegment(b.mac(1, 5), hostile.mac(1, 5), 100, 1448)
	slid, dlid := hostile.lid(1), b.lid(1)
	forge := func() {
		p := make([]byte, vnic.PacketLen(len(frame)))
		h := native.Header16{
			SLID:   slid,
			DLID:   dlid,
			Length: uint16(len(p) / 8),
			L4:     native.L4Ethernet,
			PKey:   ib.DefaultPKey,
		}
		h.Put(p)
		native.PutEthernet16(p[native.Header16Len:], 5)
		copy(p[vnic.HeaderLen:], frame)
		native.Seal16(p, native.Ethernet16Len+len(frame))
		l, f := hostile.node.lanes.First(), hostile.node.lanes.First().Net.Fabric
		if err := l.Query(func() { f.Send16(l.Now(), p); f.Flush(l.Now()) }); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "a packet with another key is refused", func() bool {
		forge()
		return b.stat("plug0", "rx_bad_pkey") > 0
	})
	if f, _ := there.came(); len(f) > 0 {
		t.Error("a forged frame was delivered")
	}
}

// TestVESWInterface: the configuration of the interface, its events, its end and its replacement.
func TestVESWInterface(t *testing.T) {
	nodes := veswPair(t)
	a, ctx := nodes[0], context.Background()
	if l, err := api.Get(ctx, a.cli, api.ListVESWInterfaces); err != nil || len(l) != 0 {
		t.Fatalf("%+v, %v", l, err)
	}
	a.vport(1, 0, 5, 4000)
	p := a.made(0)
	a.forwards("plug0")
	v := a.port("plug0")
	mac := a.mac(1, 5)
	if v.Device != "weft_ib0" || v.VESW != 5 || v.MTU != 1500 || v.MaxMTU != 4000 ||
		v.MAC != fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]) ||
		!v.Carrier ||
		v.PKey != "0xffff" ||
		v.LID != int(a.lid(1)) {
		t.Errorf("%+v", v)
	}
	// What its owner makes of it.
	own := [6]byte{0x52, 0x54, 0, 1, 2, 3}
	p.tell(func(e *vnic.SegmentEvent) {
		e.MAC, e.MTU = own, 3000
		e.Unicast, e.Multicast = [][6]byte{{2, 1, 1, 1, 1, 1}}, [][6]byte{{1, 0, 0x5e, 1, 2, 3}}
	})
	eventually(t, "the port is as its interface", func() bool {
		v := a.port("plug0")
		return v.MAC == "52:54:00:01:02:03" && v.MTU == 3000 && v.MACs == 2
	})
	p.tell(func(e *vnic.SegmentEvent) { e.Up = false })
	eventually(t, "the port is down", func() bool {
		v := a.port("plug0")
		return v.State == "drop_all" && v.Reason == vesw.ReasonDown && !v.Carrier
	})
	for _, d := range a.status().Degraded {
		if strings.HasPrefix(d.What, "vesw") {
			t.Errorf("%+v", d)
		}
	}
	p.tell(func(e *vnic.SegmentEvent) { e.Up = true })
	a.forwards("plug0")
	// Another VESW, and a smaller MTU, for which the interface stays.
	a.vport(1, 0, 6, 2000)
	mac = a.mac(1, 6)
	eventually(t, "the interface is as the port", func() bool {
		v := a.port("plug0")
		p.mu.Lock()
		defer p.mu.Unlock()
		return v.VESW == 6 && v.MTU == 2000 && p.device.MaxMTU == 2000 && p.device.MAC == mac && p.event.MAC == mac
	})
	// The interface is for something else.
	if l, err := api.Call(ctx, a.cli, api.AttachVESW, api.VESWRequest{Device: "weft_ib0", VESW: 6,
		Backend: api.BackendTAP, Name: "lab0"}); err != nil ||
		len(l) != 1 ||
		l[0].Name != "lab0" {
		t.Fatalf("%+v, %v", l, err)
	}
	q := a.made(1)
	a.forwards("lab0")
	if p.mu.Lock(); !p.closed {
		t.Error("the first interface is still there")
	}
	p.mu.Unlock()
	if _, err := api.Call(ctx, a.cli, api.AttachVESW, api.VESWRequest{Device: "weft_ib0", VESW: 6,
		Backend: api.BackendTAP, Name: "lab1"}); err == nil {
		t.Error("attached twice")
	}
	if err := api.Do(ctx, a.cli, api.DetachVESW, "lab0"); err != nil {
		t.Error(err)
	}
	r := a.made(2)
	a.forwards("plug2")
	if q.mu.Lock(); !q.closed {
		t.Error("the attached interface is still there")
	}
	q.mu.Unlock()
	if err := api.Do(ctx, a.cli, api.DetachVESW, "lab0"); err == nil {
		t.Error("detached twice")
	}
	// Another program removes it, and it cannot be made again at first.
	a.mu.Lock()
	a.fail = &problem.Error{What: "create it", Why: "no", Fix: "be root"}
	a.mu.Unlock()
	r.set(func() { r.broken = errors.New("removed") })
	r.wake()
	eventually(t, "that is told", func() bool {
		return slices.ContainsFunc(a.status().Degraded, func(d api.Degraded) bool {
			return d.What == "vesw_no_interface" && strings.HasPrefix(d.Fix, "be root; ") &&
				strings.HasSuffix(d.Why, "create it: no")
		})
	})
	a.mu.Lock()
	a.fail = nil
	a.mu.Unlock()
	a.made(3)
	a.forwards("plug3")
	// The manager removes the port, and makes one with its number.
	a.node.sub.Do(func() {
		if err := a.node.vesw.Ports(1).Remove(a.node.now(), 0); err != nil {
			t.Error(err)
		}
	})
	if l, err := api.Get(ctx, a.cli, api.ListVESWInterfaces); err != nil || len(l) != 0 {
		t.Errorf("%+v, %v", l, err)
	}
	a.vport(1, 0, 7, 1500)
	last := a.made(4)
	a.forwards("plug4")
	if n := a.stat("plug4", "tx_packets") + a.stat("plug4", "rx_packets"); n != 0 {
		t.Errorf("a new port has counted %d packets", n)
	}
	// The device goes.
	a.vport(2, 9, 7, 1500)
	virtual := a.made(5)
	if err := api.Do(ctx, a.cli, api.DeleteFunction, "weft_ib1"); err != nil {
		t.Fatal(err)
	}
	if virtual.mu.Lock(); !virtual.closed {
		t.Error("the interface outlives its device")
	}
	virtual.mu.Unlock()
	a.stop()
	if err := <-a.done; err != nil {
		t.Error(err)
	}
	a.done <- nil
	if last.mu.Lock(); !last.closed {
		t.Error("the interface outlives its node")
	}
	last.mu.Unlock()
}

// TestVESWRetries: an interface that cannot be made is tried again, later each time, and told of once for each
// reason.
func TestVESWRetries(t *testing.T) {
	a := veswPair(t)[0]
	const first = 10 * time.Millisecond
	a.node.sub.Do(func() { a.node.vesw.Retry = first })
	fail := func(err error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.fail, a.tries = err, nil
	}
	tries := func() []time.Time {
		a.mu.Lock()
		defer a.mu.Unlock()
		return slices.Clone(a.tries)
	}
	const warning = "a VESW port has no interface"
	failed := func() bool {
		return slices.ContainsFunc(
			a.status().Degraded,
			func(d api.Degraded) bool { return d.What == "vesw_no_interface" },
		)
	}
	fail(errors.New("no"))
	a.vport(1, 0, 5, 1500)
	eventually(t, "it is tried six times", func() bool {
		if len(tries()) > 1 && !failed() {
			t.Fatal("the status forgets while it is tried again")
		}
		return len(tries()) >= 6
	})
	if n := a.logs.count(warning); n != 1 {
		t.Errorf("%d warnings", n)
	}
	for i, at := range tries()[1:6] {
		if d := at.Sub(tries()[i]); d < first<<i {
			t.Errorf("try %d came after %v", i+2, d)
		}
	}
	fail(errors.New("no, for another reason"))
	eventually(t, "it is tried again", func() bool { return len(tries()) >= 2 })
	if n := a.logs.count(warning); n != 2 {
		t.Errorf("%d warnings of two reasons", n)
	}
	fail(nil)
	a.made(0)
	a.forwards("plug0")
	if failed() {
		t.Error("the status remembers")
	}
}

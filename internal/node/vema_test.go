// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/internal/mgmt/umad"
	"weft/internal/node/subnet"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	native "weft/internal/proto/wire"
	"weft/internal/service/vnic"
	"weft/internal/service/vnic/vema"
)

// veswAdapter is a function with netdevs and nothing behind them.
type veswAdapter struct{ *vnic.Netdevs }

func (a veswAdapter) AllocNetdev(vport uint8) (vnic.Netdev, error) {
	s, err := a.Alloc(vport)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (a veswAdapter) FreeNetdev(vport uint8) { a.Free(vport) }

// party speaks and listens at the ports of a node in the place of its programs and of its manager's
// Ethernet half; the rest of the manager works as it does. All of it is the management goroutine's.
type party struct {
	*port16
	subnet.Manager
	out  []outgoingMAD
	came []cameMAD
}

type outgoingMAD struct {
	function uint16
	d        mad.Datagram
}

type cameMAD struct {
	function uint16
	d        mad.Datagram
}

// join puts a party between a node and its programs.
func join(n *port16) *party {
	p := &party{port16: n}
	n.node.sub.Do(func() {
		if p.Manager = n.node.sub.Manager; p.Manager != nil {
			n.node.sub.Manager = managerParty{p}
		}
		n.node.sub.Clients = clientParty{p}
	})
	return p
}

// managerParty is the party at port 0 of the switch.
type managerParty struct{ *party }

func (p managerParty) Handle(now mono.Time, d *mad.Datagram) {
	if d.Long == nil {
		p.Manager.Handle(now, d)
		return
	}
	p.came = append(p.came, cameMAD{0, *d})
}

// Next drops what the Ethernet half of the manager sends.
func (p managerParty) Next(now mono.Time, d *mad.Datagram) bool {
	for p.Manager.Next(now, d) {
		if d.Long == nil {
			return true
		}
	}
	return false
}

// clientParty is the party at the ports of functions.
type clientParty struct{ *party }

func (p clientParty) Receive(_ mono.Time, function uint16, d *mad.Datagram) bool {
	m := mad.Method(d.Data[3])
	if m.IsResponse() {
		p.came = append(p.came, cameMAD{function, *d})
	}
	return m.IsResponse()
}

func (p clientParty) Next(_ mono.Time, d *mad.Datagram) (uint16, bool) {
	if len(p.out) == 0 {
		return 0, false
	}
	o := p.out[0]
	p.out = p.out[1:]
	*d = o.d
	return o.function, true
}

func (p clientParty) Deadline() mono.Time      { return 0 }
func (p clientParty) Remove(mono.Time, uint16) {}
func (p *party) lidOf(function uint16) (l ib.LID) { // 0 is the switch
	p.node.sub.Do(func() {
		if l = p.node.sub.Switch.LID(); function != 0 {
			l = p.node.sub.Port(function).Agent.LID()
		}
	})
	return l
}

// speak sends a MAD to queue pair 1 of a LID.
func (p *party) speak(function uint16, to ib.LID, b []byte) {
	p.t.Helper()
	d := mad.Datagram{SLID: p.lidOf(function), DLID: to, SrcQPN: ib.QPNGSI, DstQPN: ib.QPNGSI, QKey: ib.GSIQKey,
		PKey: ib.DefaultPKey}
	if !d.SetMAD(b) {
		p.t.Fatalf("%d octets are no MAD", len(b))
	}
	p.node.sub.Do(func() { p.out = append(p.out, outgoingMAD{function, d}) })
}

// heard returns what came with a transaction identifier.
func (p *party) heard(function uint16, tid uint64) (list []mad.Datagram) {
	p.node.sub.Do(func() {
		for _, c := range p.came {
			var h mad.Header
			if h.Parse(c.d.Data[:]); c.function == function && h.TransactionID == tid {
				list = append(list, c.d)
			}
		}
	})
	return list
}

// ask sends a request until it is answered, for a trunk may lose some.
func (p *party) ask(function uint16, to ib.LID, m *mad.VEMA) mad.Datagram {
	p.t.Helper()
	for end := time.Now().Add(limit); time.Now().Before(end); {
		p.speak(function, to, m.Append(nil))
		for wait := time.Now().Add(time.Second); time.Now().Before(wait); time.Sleep(time.Millisecond) {
			if l := p.heard(function, m.TransactionID); len(l) > 0 {
				return l[0]
			}
		}
	}
	p.t.Fatalf("%v of %#x to LID %d is not answered", m.Method, m.AttributeID, to)
	return mad.Datagram{}
}

// TestD14_EthernetAgents: a manager and a stranger speak with the agents of virtual Ethernet of other nodes,
// over one trunk and over two, in MADs of 2048 octets; agents tell the manager by traps, and the subnet manager
// by a capability as long as they are there; and what is no such MAD, or is the stranger's, changes nothing.
func TestD14_EthernetAgents(t *testing.T) {
	nodes := row(t)
	parties := []*party{join(nodes[0]), join(nodes[1]), join(nodes[2])}
	manager, stranger := parties[0], parties[1]
	smLID := manager.lidOf(0)
	for _, p := range parties {
		p.node.sub.Do(func() { p.node.sub.ServeEthernet(1, nil) }) // the node's own
	}
	tid := uint64(0)
	request := func(m mad.Method, id mad.AttributeID, vport uint8, c interface{ Append([]byte) []byte }) *mad.VEMA {
		tid++
		r := mad.NewVEMA(m, id, vport, tid)
		if c != nil {
			c.Append(r.Data[:0])
		}
		return &r
	}
	for _, p := range parties[1:] { // behind this request nothing of the node's own manager is under way
		manager.ask(0, p.lid, request(mad.MethodGet, mad.AttrClassPortInfo, 0, nil))
	}
	ports := make([]*vnic.Ports, 3)
	agents := make([]*vema.Agent, 3)
	for i, p := range parties[1:] {
		ports[i+1] = vnic.New(vnic.Config{Function: veswAdapter{vnic.NewNetdevs(0)}, OPAPort: 1})
		agents[i+1] = vema.New(vema.Config{Ports: ports[i+1]})
		var before uint64
		traps := func() (n uint64) {
			p.node.sub.Do(func() { n = p.node.sub.Port(1).Agent.Stats.Traps })
			return n
		}
		p.node.sub.Do(func() {
			before = p.node.sub.Port(1).Agent.Stats.Traps
			ports[i+1].SetLink(p.node.now(), true)
			p.node.sub.ServeEthernet(1, agents[i+1])
		})
		eventually(t, "the subnet manager is told of a capability", func() bool { return traps() > before })
	}
	// answered requires an answer with a status, of 2048 octets, and returns it.
	answered := func(what string, d mad.Datagram, status mad.Status) (m mad.VEMA) {
		t.Helper()
		if err := m.Parse(d.Long); err != nil || m.Status != status || m.Method != mad.MethodGetResp ||
			len(d.Long) != mad.OPALen {
			t.Errorf("%s: %d octets, %v, %v, %v; want %v", what, len(d.Long), err, m.Method, m.Status, status)
		}
		return m
	}
	notices := func(p *party, what string) int { return p.notices(what) }

	for i, p := range parties[1:] {
		if c := p.capabilities(); c&mad.CapVendorClass == 0 {
			t.Errorf("node %d: capabilities %#x", i+1, c)
		}
		if notices(p, "no_ethernet_manager") != 1 {
			t.Errorf("node %d does not wait for an Ethernet Manager: %+v", i+1, p.status().Notices)
		}
		// Every port may send a Get.
		for _, from := range []*party{manager, stranger} {
			m := answered("Get(ClassPortInfo)", from.ask(1, p.lid, request(mad.MethodGet, mad.AttrClassPortInfo, 0,
				nil)), mad.StatusOK)
			var c mad.VEMAClassPortInfo
			if c.Parse(m.Data[:]); c.CapabilityMask != 0xff01 || c.BaseVersion != 0x80 || c.RespTimeValue != 18 ||
				c.Trap.LID != 0 {
				t.Errorf("ClassPortInfo of node %d: %+v", i+1, c)
			}
		}
	}

	// Without an agent the reply is a refusal, a header alone.
	for _, to := range []ib.LID{manager.lid, smLID} {
		d := stranger.ask(1, to, request(mad.MethodGet, mad.AttrClassPortInfo, 0, nil))
		var h mad.Header
		if h.Parse(d.Long); len(d.Long) != mad.HeaderLen || h.Status != mad.StatusBadMethodAttr ||
			h.Method != mad.MethodGetResp || h.TransactionID != tid {
			t.Errorf("LID %d: %d octets, %+v", to, len(d.Long), h)
		}
	}
	if c := manager.capabilities(); c&mad.CapVendorClass != 0 {
		t.Errorf("capabilities %#x of a port without an agent", c)
	}

	// The stranger may not set anything, not even where there is no manager yet.
	far := parties[2]
	forged := mad.DefaultVESWPortInfo()
	forged.VESW.VESWID, forged.Port.EncapSLID = 7, uint32(far.lid)
	for _, r := range []*mad.VEMA{
		request(mad.MethodSet, mad.AttrClassPortInfo, 0,
			&mad.VEMAClassPortInfo{Trap: mad.VEMATarget{LID: uint32(stranger.lid)}}),
		request(mad.MethodSet, mad.AttrVESWPortInfo, 0, &forged),
	} {
		answered("a stranger's Set", stranger.ask(1, far.lid, r), mad.StatusInvalidValue)
	}
	if notices(far, "ethernet_refused_lid") != 1 || notices(far, "no_ethernet_manager") != 1 ||
		far.counter(api.ScopePort, "vema_untrusted") < 2 {
		t.Errorf("%+v", far.status().Notices)
	}

	// The manager may, and traps go to it.
	answered("Set(ClassPortInfo)", manager.ask(0, far.lid, request(mad.MethodSet, mad.AttrClassPortInfo, 0,
		&mad.VEMAClassPortInfo{Trap: mad.VEMATarget{LID: uint32(smLID)}})), mad.StatusOK)
	info := mad.DefaultVESWPortInfo()
	info.VESW.VESWID, info.VESW.FabricID, info.VESW.PKey, info.VESW.McastDLID = 0x123, 1, ib.DefaultPKey, 0xf00005
	info.Port.PortNum, info.Port.EncapSLID, info.Port.ConfigState = 9, uint32(far.lid), mad.VESWForwarding
	info.Port.BaseMAC = mad.VESWMAC(1, 0x123, uint32(far.lid))
	m := answered("Set(VESWPortInfo)", manager.ask(0, far.lid, request(mad.MethodSet, mad.AttrVESWPortInfo, 4,
		&info)), mad.StatusOK)
	var got mad.VESWPortInfo
	if got.Parse(m.Data[:]); got.VESW != info.VESW || got.Port.BaseMAC != info.Port.BaseMAC {
		t.Errorf("%+v", got)
	}
	if notices(far, "no_ethernet_manager") != 0 {
		t.Errorf("still waits: %+v", far.status().Notices)
	}
	far.node.sub.Do(func() { ports[2].Port(4).SetAdmin(far.node.now(), true) })
	isTrap := func(c cameMAD) bool { return mad.Method(c.d.Data[3]) == mad.MethodTrap }
	// A trap is sent once: the trunk may lose it, and then the next one reports.
	eventually(t, "a trap arrives", func() (ok bool) {
		manager.node.sub.Do(func() {
			i := slices.IndexFunc(manager.came, isTrap)
			if ok = i >= 0; !ok {
				return
			}
			d := manager.came[i].d
			var trap mad.VEMATrap
			if err := trap.Parse(d.Long); err != nil || len(d.Long) != mad.VEMATrapLen ||
				trap.Notice.Opcode != mad.VEMALinkStatus || !trap.Notice.Informational() ||
				trap.Notice.VPort != 4 || trap.Notice.VESWID != 0x123 || trap.Notice.IssuerLID != uint32(far.lid) ||
				d.SLID != far.lid {
				t.Errorf("%d octets, %v, %+v", len(d.Long), err, trap)
			}
		})
		if !ok {
			far.node.sub.Do(func() {
				ports[2].Port(4).SetAdmin(far.node.now(), false)
				ports[2].Port(4).SetAdmin(far.node.now(), true)
			})
			time.Sleep(100 * time.Millisecond)
		}
		return ok
	})

	// What is not what it seems: each is sent with the manager's addresses, and one that is right at the end,
	// so that all have been judged.
	far.node.sub.Do(func() { got = ports[2].Info(4) })
	set := request(mad.MethodSet, mad.AttrVESWDelete, 4, nil).Append(nil)
	with := func(at int, v byte) []byte {
		b := bytes.Clone(set)
		b[at] = v
		return b
	}
	for _, b := range [][]byte{set[:2044], set[:1024], set[:272], set[:256], set[:40], set[:24], with(2, 1),
		with(37, 9), with(1, 3), with(1, 4), with(1, 0x81), with(1, 1),
		with(3, 3), with(3, 5), with(3, 7), with(3, 0x81), with(0, 1)[:256], with(0, 0)[:256]} {
		manager.speak(0, far.lid, b)
	}
	hostile := func(data []byte) {
		port := manager.node.sub.TrunkPort(0)
		l, f := manager.node.lanes.First(), manager.node.lanes.First().Net.Fabric
		d := mad.Datagram{SLID: smLID, DLID: far.lid, SrcQPN: ib.QPNGSI, DstQPN: ib.QPNGSI, QKey: ib.GSIQKey,
			PKey: ib.DefaultPKey, Long: data}
		if err := l.Query(func() { f.SendMAD(l.Now(), port, &d); f.Flush(l.Now()) }); err != nil {
			t.Fatal(err)
		}
	}
	for _, b := range [][]byte{append(bytes.Clone(set), 0, 0, 0, 0), append(bytes.Clone(set), make([]byte, 2048)...),
		set[:20], set[:4], with(0, 1), with(0, 0x81)} {
		hostile(b)
	}
	before := manager.ask(0, far.lid, request(mad.MethodGet, mad.AttrVESWPortInfo, 4, nil))
	var still mad.VESWPortInfo
	m = answered("Get(VESWPortInfo)", before, mad.StatusOK)
	if still.Parse(m.Data[:]); still != got {
		t.Errorf("changed to %+v\nfrom %+v", still, got)
	}

	// The function goes, and its agent with it.
	far.node.sub.Do(func() { far.node.sub.ServeEthernet(1, nil) })
	if c := far.capabilities(); c&mad.CapVendorClass != 0 {
		t.Errorf("capabilities %#x without an agent", c)
	}
	if d := stranger.ask(1, far.lid, request(mad.MethodGet, mad.AttrClassPortInfo, 0,
		nil)); len(d.Long) != mad.HeaderLen {
		t.Errorf("%d octets of who is gone", len(d.Long))
	}
}

// capabilities are those that the subnet manager sees of the node's port.
func (p *party) capabilities() (c mad.Capability) {
	p.node.sub.Do(func() { c = p.node.sub.Port(1).Agent.Port(1).CapabilityMask })
	return c
}

// TestMADsWithinNode: what queue pairs of a node send to queue pair 1 of it reaches the management goroutine in each
// of the lengths that MADs have, and in no other.
func TestMADsWithinNode(t *testing.T) {
	n := row(t)[0]
	p := join(n)
	p.node.sub.Do(func() {
		p.node.sub.ServeEthernet(1, vema.New(vema.Config{Ports: vnic.New(vnic.Config{Function: veswAdapter{vnic.NewNetdevs(0)}, OPAPort: 1})}))
	})
	l := n.node.lanes.First()
	send := func(b []byte) {
		t.Helper()
		if err := l.Query(func() {
			r := pkt.Burst{Headers: native.Headers{Opcode: ib.ServiceUD | ib.SendOnly, PKey: ib.DefaultPKey,
				DestQPN: ib.QPNGSI, QKey: ib.GSIQKey, SrcQPN: ib.QPNGSI},
				Count: 1, Path: &ib.Path{SLID: n.lid, DLID: n.lid, Function: 1}, Data: mem.BytesPayload(b)}
			n.node.sub.Receive(l.HCA, l.Now(), &r)
		}); err != nil {
			t.Fatal(err)
		}
	}
	get := func(tid uint64) []byte {
		m := mad.NewVEMA(mad.MethodGet, mad.AttrClassPortInfo, 0, tid)
		return m.Append(nil)
	}
	for _, b := range [][]byte{get(1)[:2044], get(1)[:24], get(1)[:256], append(get(1), 0, 0, 0, 0), get(1)[:20], nil,
		get(1)[:2046]} {
		send(b)
	}
	send(get(2))
	var list []mad.Datagram
	eventually(t, "an answer", func() bool { list = p.heard(1, 2); return len(list) > 0 })
	var m mad.VEMA
	if m.Parse(list[0].Long); m.Status != 0 || m.Data[2] != 0xff || len(list) != 1 {
		t.Errorf("%+v", m.Header)
	}
	for _, d := range p.heard(1, 1) {
		if len(d.Long) != mad.HeaderLen {
			t.Errorf("%d octets", len(d.Long))
		}
	}
	if k := len(p.heard(1, 1)); k != 3 { // those that can be MADs
		t.Errorf("%d refusals", k)
	}
}

// TestUmadOfEthernet: a program queries the agent of another node, in records as long as the MADs.
func TestUmadOfEthernet(t *testing.T) {
	nodes := row(t)
	to := nodes[1]
	to.node.sub.Do(func() {
		to.node.sub.ServeEthernet(1, vema.New(vema.Config{Ports: vnic.New(vnic.Config{Function: veswAdapter{vnic.NewNetdevs(0)}, OPAPort: 1})}))
	})
	r := nodes[0].running
	c, a := r.umadOpen(firstNative)
	if a := r.umadControl(a.Token, 3, nil); a.Error != 0 {
		t.Fatalf("enable: %+v", a)
	}
	reg := make([]byte, 28)
	copy(reg[20:], []byte{1, byte(mad.ClassVEMA), mad.VEMAClassVersion, 0x00, 0x06, 0x6a})
	if a := r.umadControl(a.Token, 1, reg); a.Error != 0 {
		t.Fatalf("register: %+v", a)
	}
	h := umad.Header{TimeoutMS: 500, Retries: 20, QPN: ib.QPNGSI, QKey: ib.GSIQKey, LID: to.lid}
	m := mad.NewVEMA(mad.MethodGet, mad.AttrClassPortInfo, 0, 0x42)
	if _, err := c.Write(m.Append(h.Append(nil, umad.HeaderLen))); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4096)
	n, err := c.Read(b)
	if err != nil || h.Parse(b[:n], umad.HeaderLen) != umad.OK || h.Status != umad.OK ||
		n != umad.HeaderLen+mad.OPALen || int(h.Length) != n || h.LID != to.lid {
		t.Fatalf("%d octets, %v, %+v", n, err, h)
	}
	var i mad.VEMAClassPortInfo
	if m.Parse(b[umad.HeaderLen:n]); m.Method != mad.MethodGetResp || m.Status != 0 ||
		uint32(m.TransactionID) != 0x42 || i.Parse(m.Data[:]) != nil || i.MaxVPorts() != 255 {
		t.Errorf("%+v, %+v", m.Header, i)
	}
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/fabric/link/fabric"
	"weft/internal/fabric/trunk"
	"weft/internal/fabric/vswitch"
	"weft/internal/host/rundir"
	"weft/internal/mgmt/agent"
	"weft/internal/mgmt/manager"
	"weft/internal/mgmt/umad"
	"weft/internal/proto/abi"
	"weft/internal/proto/condtest"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mem"
	"weft/internal/proto/pkt"
	native "weft/internal/proto/wire"
)

// subnetOfTwo is a node that manages a subnet with an M_Key, and another one that has no
// manager and does not know the key: what it sends is not to be trusted.
type subnetOfTwo struct {
	t    *testing.T
	a, b *running
	// LIDs of the switches and of the InfiniBand ports.
	aSwitch, bSwitch, aPort, bPort ib.LID
	sa                             ib.LID // of subnet administration
}

// stranger is a user that may use the node, and not manage it.
const stranger = 12345

func newSubnetOfTwo(t *testing.T) *subnetOfTwo {
	t.Helper()
	ports := []int{condtest.Port(t), condtest.Port(t)}
	one := func(i int, change func(*config.Config)) *running {
		return run(t, func(c *config.Config) {
			c.Fabric, c.Store, c.TrunkPort, c.Peers = true, config.StoreMemory, ports[i], []string{fmt.Sprintf("127.0.0.1:%d", ports[1-i])}
			change(c)
		})
	}
	s := &subnetOfTwo{t: t}
	s.b = one(1, func(c *config.Config) { c.SM = config.SMOff })
	s.a = one(0, func(c *config.Config) {
		c.AllowUIDs = []int{stranger}
		c.MKeyFile = filepath.Join(t.TempDir(), "key")
		if err := os.WriteFile(c.MKeyFile, []byte("0x123456789abcdef0"), 0o600); err != nil {
			t.Fatal(err)
		}
	})
	s.settled()
	s.aSwitch, s.aPort = s.lids(s.a)
	s.bSwitch, s.bPort = s.lids(s.b)
	s.sa = s.aSwitch
	return s
}

// downs is how often trunks of a, the node that is attacked, went down.
func (s *subnetOfTwo) downs() (n uint64) {
	list, err := api.Get(context.Background(), s.a.cli, api.ListTrunks)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, t := range list {
		n += t.Downs
	}
	return n
}

// settled waits until both nodes are configured and guarded.
func (s *subnetOfTwo) settled() {
	s.t.Helper()
	eventually(s.t, "both nodes are configured and guarded", func() bool {
		ok := true
		for _, r := range []*running{s.a, s.b} {
			r.node.sub.Do(func() {
				c := r.node.sub.Port(1).Agent.Port(1)
				ok = ok && c.PortState == ib.PortActive && c.MKey != 0 && r.node.sub.Switch.Port(0).MKey != 0
				// Nothing is left of a trunk that went down.
				trunk, info := r.node.sub.Switch.Port(uint8(r.cfg.SwitchPorts)), r.node.sub.Switch.SwitchInfo()
				ok = ok && trunk.PortState == ib.PortActive && !info.PortStateChange
			})
		}
		s.a.node.sub.Do(func() {
			ok = ok && managerOf(s.a.node).Topo() != nil &&
				len(managerOf(s.a.node).Topo().Nodes) == 4
		})
		m, err := api.Get(context.Background(), s.a.cli, api.GetManager)
		return ok && err == nil && m.Sweeping == "" && len(m.Problems) == 0
	})
}

func (s *subnetOfTwo) lids(r *running) (sw, port ib.LID) {
	r.node.sub.Do(func() { sw, port = r.node.sub.Switch.LID(), r.node.sub.Port(1).Agent.LID() })
	return
}

// tables is everything of node a that managers and clients change, as text: whole
// attributes, without the counters of violations.
func (s *subnetOfTwo) tables() (text string) {
	n := s.a.node
	n.sub.Do(func() {
		var b strings.Builder
		node := func(name string, a *agent.Agent, first, last uint8) {
			for p := first; p <= last; p++ {
				i := *a.Port(p)
				i.MKeyViolations, i.PKeyViolations, i.QKeyViolations = 0, 0, 0
				fmt.Fprintf(&b, "%s port %d: % x, %v\n", name, p, i.Append(nil), a.PKeys(p))
			}
			fmt.Fprintf(&b, "%s: %q %v\n", name, a.Description(), a.GUIDs())
		}
		node("switch", n.sub.Switch, 0, uint8(n.cfg.SwitchPorts))
		i := n.sub.Switch.SwitchInfo()
		fmt.Fprintf(&b, "SwitchInfo % x\n", i.Append(nil))
		f := n.sub.Switch.Forwarding()
		for block := range vswitch.LinearCap / vswitch.BlockLIDs {
			if t := f.LFT(block); block < 2 || t != f.LFT(2) {
				fmt.Fprintf(&b, "LFT %d: % x\n", block, t)
			}
		}
		for block := range vswitch.MulticastCap / vswitch.BlockMLIDs {
			for pos := range uint8(3) {
				if t := f.MFT(block, pos); t != ([vswitch.BlockMLIDs]uint16{}) {
					fmt.Fprintf(&b, "MFT %d %d: %04x\n", block, pos, t)
				}
			}
		}
		for _, c := range n.sub.Functions {
			node(c.Adapter.Name, c.Agent, 1, 1)
		}
		t := managerOf(n).Topo()
		for r := range t.EndPorts() {
			fmt.Fprintf(&b, "known: %v %v %v\n", t.Port(r).GUID, t.Port(r).Info.LID, t.Port(r).PKeys)
		}
		records, err := json.Marshal(managerOf(n).Records(n.now()))
		if err != nil {
			s.t.Error(err)
		}
		fmt.Fprintf(&b, "SA %s\nmanager %v\n", records, managerOf(n).Status().State)
		text = b.String()
	})
	return text
}

// datagram sends a MAD by b's trunk as b's agents would, whatever is in it.
func (s *subnetOfTwo) datagram(d mad.Datagram) {
	l := s.b.node.lanes.First()
	l.Post(func() { s.b.node.lanes.First().Net.Fabric.SendMAD(l.Now(), uint8(s.b.cfg.SwitchPorts), &d) })
}

// packet sends a packet by b's trunk as it is.
func (s *subnetOfTwo) packet(p []byte) {
	l, t := s.b.node.lanes.First(), s.b.node.sub.Sender(0)
	l.Post(func() {
		copy(t.Reserve(0, len(p)), p)
		t.Commit(l.Now(), len(p))
		t.Flush(l.Now())
	})
}

// directed is a directed-route SMP that arrives at a from its neighbour.
func (s *subnetOfTwo) directed(method mad.Method, attr mad.AttributeID, mod uint32, data []byte,
	change func(*mad.SMP)) mad.Datagram {
	p := mad.SMP{Header: mad.Header{BaseVersion: 1, MgmtClass: mad.ClassSubnDR, ClassVersion: 1, Method: method,
		TransactionID: 77, AttributeID: attr,
		AttributeModifier: mod}, HopPointer: 1, HopCount: 1, DrSLID: ib.LIDPermissive, DrDLID: ib.LIDPermissive}
	p.InitialPath[1] = uint8(s.b.cfg.SwitchPorts)
	copy(p.Data[:], data)
	if change != nil {
		change(&p)
	}
	d := mad.Datagram{SLID: ib.LIDPermissive, DLID: ib.LIDPermissive, PKey: ib.DefaultPKey}
	p.Append(d.Data[:0])
	return d
}

// routed is an SMP that goes to a LID.
func (s *subnetOfTwo) routed(to ib.LID, attr mad.AttributeID, mod uint32, data []byte,
	change func(*mad.SMP)) mad.Datagram {
	p := mad.SMP{Header: mad.Header{BaseVersion: 1, MgmtClass: mad.ClassSubnLID, ClassVersion: 1,
		Method: mad.MethodSet, TransactionID: 77, AttributeID: attr,
		AttributeModifier: mod}}
	copy(p.Data[:], data)
	if change != nil {
		change(&p)
	}
	d := mad.Datagram{SLID: s.bSwitch, DLID: to, PKey: ib.DefaultPKey}
	p.Append(d.Data[:0])
	return d
}

// administration is a request to the SA from b's port.
func (s *subnetOfTwo) administration(method mad.Method, attr mad.AttributeID, mask mad.ComponentMask, record []byte,
	change func(*mad.SA)) mad.Datagram {
	var r mad.SA
	r.Header = mad.Header{BaseVersion: 1, MgmtClass: mad.ClassSA, ClassVersion: mad.ClassVersionSA, Method: method,
		TransactionID: 77, AttributeID: attr}
	r.ComponentMask = mask
	copy(r.Data[:], record)
	if change != nil {
		change(&r)
	}
	d := mad.Datagram{SLID: s.bPort, DLID: s.sa, SrcQPN: 1, DstQPN: 1, QKey: ib.GSIQKey, PKey: ib.DefaultPKey}
	r.Append(d.Data[:0])
	return d
}

// asStranger runs f on a thread of a user without the right to manage.
func asStranger(t *testing.T, user int, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { // on a thread that ends with it
		runtime.LockOSThread()
		defer close(done)
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(user), ^uintptr(0)); e != 0 {
			t.Error(e)
			return
		}
		f()
	}()
	<-done
}

// program writes a record to a umad file of node a as another user.
func (s *subnetOfTwo) program(user int, record []byte) {
	s.t.Helper()
	for dir := s.a.cfg.Dir; dir != "/"; dir = filepath.Dir(dir) {
		if i, err := os.Stat(dir); err != nil || i.Mode().Perm()&1 == 0 {
			if err := os.Chmod(dir, 0o755); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	var c *net.UnixConn
	asStranger(s.t, user, func() {
		var err error
		if c, err = net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: filepath.Join(s.a.cfg.Dir, rundir.UmadSock),
			Net: "unixpacket"}); err != nil {
			s.t.Error(err)
		}
	})
	if c == nil {
		s.t.FailNow()
	}
	s.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(limit))
	if record == nil { // one that the node does not serve
		c.Write(umadOpening(abi.UmadOpOpen, firstNative, 0).Append(nil)) // it may be closed already
		if n, err := c.Read(make([]byte, 64)); n > 0 || err == nil {
			s.t.Errorf("answered with %d bytes, %v", n, err)
		}
		return
	}
	o, err := abi.ParseUmadOpened(umadAsk(s.t, c, umadOpening(abi.UmadOpOpen, firstNative, 0).Append(nil)))
	if err != nil || o.Error != 0 {
		s.t.Fatalf("open: %v, %+v", err, o)
	}
	s.a.smpAgent(o.Token)
	if _, err := c.Write(record); err != nil {
		s.t.Fatal(err)
	}
	if h, _ := umadRead(s.t, c); h.Status != umad.EPERM {
		s.t.Errorf("status %d", h.Status)
	}
}

// sealed builds a native packet with right CRCs.
func sealed(lrh native.LRH, h native.Headers, payload []byte) []byte {
	b := make([]byte, native.LRHLen+64+len(payload)+native.ICRCLen+native.VCRCLen)
	n := native.LRHLen
	n += h.Put(b[n:])
	n += copy(b[n:], payload)
	lrh.LNH, lrh.PktLen = native.LNHLocal, uint16((n+native.ICRCLen)/4)
	lrh.Put(b)
	native.PutICRC(b[n:], native.SumIB(b[:n]))
	n += native.ICRCLen
	binary.BigEndian.PutUint16(b[n:], native.VCRC(b[:n]))
	return b[:n+native.VCRCLen]
}

// TestUntrustedSources: only the manager changes a table of a node, or records of others in the subnet
// administration. Every refusal has its counter.
func TestUntrustedSources(t *testing.T) {
	condtest.NeedRoot(t, "to be another user")
	s := newSubnetOfTwo(t)
	var of struct{ sw, port mad.PortInfo }
	s.a.node.sub.Do(func() { of.sw, of.port = *s.a.node.sub.Switch.Port(0), *s.a.node.sub.Port(1).Agent.Port(1) })
	evil := func(i mad.PortInfo) []byte {
		i.LID, i.MasterSMLID, i.PortState, i.PortPhysicalState, i.MKey, i.MKeyProtectBits = 0x77, s.bSwitch, ib.PortNoChange, ib.PhysNoChange, 0, 0
		return i.Append(nil)
	}
	var lft mad.LFT // all LIDs lead to b
	for i := range lft {
		lft[i] = uint8(s.a.cfg.SwitchPorts)
	}
	var mft mad.MFT
	for i := range mft {
		mft[i] = 0xffff
	}
	pkeys := mad.PKeyTable{0xffff, 0x8666}
	prefix := ib.DefaultGIDPrefix
	join := mad.MCMemberRecord{MGID: manager.BroadcastGroup(0xffff), JoinState: mad.JoinFull,
		PortGID: ib.MakeGID(prefix, s.a.node.funcs.named(firstNative).a.NodeGUID+1)}
	const joins = mad.CompMCMGID | mad.CompMCPortGID | mad.CompMCJoinState
	service := mad.ServiceRecord{ServiceID: 5, ServiceGID: join.PortGID, PKey: 0xffff, Lease: 60}
	inform := mad.InformInfo{LIDBegin: 0xffff, IsGeneric: 1, Subscribe: 1, Type: 0xffff, TrapNumber: 0xffff,
		Producer: 0xffffff, QPN: 1, GID: join.PortGID}
	sminfo := mad.SMInfo{GUID: s.b.node.identity, Priority: 15, State: mad.SMMaster}
	guids := mad.GUIDInfo{1: 0x666}
	switchInfo := mad.SwitchInfo{LinearFDBTop: 1}
	raw := func(vl uint8, op ib.Opcode, qpn ib.QPN) func() {
		return func() {
			s.packet(sealed(native.LRH{VL: vl, DLID: s.aPort, SLID: s.bPort},
				native.Headers{Opcode: op, PKey: ib.DefaultPKey, DestQPN: qpn, QKey: ib.GSIQKey,
					SrcQPN: 1}, make([]byte, mad.Len)))
		}
	}
	send := func(d mad.Datagram) func() { return func() { s.datagram(d) } }
	set := func(attr mad.AttributeID, mod uint32, data []byte, change func(*mad.SMP)) mad.Datagram {
		return s.directed(mad.MethodSet, attr, mod, data, change)
	}
	key := func(p *mad.SMP) { p.MKey = 0x1122334455667788 }
	right := func(p *mad.SMP) { p.MKey = 0x123456789abcdef0 }

	for _, c := range []struct {
		name, scope, counter string
		do                   func()
	}{
		// Programs of this node.
		{"program of a user who may not manage, directed route", api.ScopeNode, "refused", func() {
			m := smpGet(7, mad.AttrPortInfo, 0, 1)
			m[umad.HeaderLen+3] = byte(mad.MethodSet)
			s.program(stranger, m)
		}},
		{"program of a user who may not manage, as a manager", api.ScopeNode, "refused", func() {
			m := smpGet(7, mad.AttrNotice, 0, 1)
			m[umad.HeaderLen+3] = byte(mad.MethodTrap)
			s.program(stranger, m)
		}},
		{"program of a user whom the node does not serve", api.ScopeNode, "socket_refused_uid",
			func() { s.program(stranger+1, nil) }},
		{"datagram of a function to queue pair 0", api.ScopeLink, "drop_unconnected", func() {
			l := s.a.node.lanes.First()
			d := s.routed(s.aSwitch, mad.AttrPortInfo, 0, evil(of.sw), right)
			l.Post(func() {
				r := &pkt.Burst{Count: 1, MTU: 4096, Path: &ib.Path{DLID: s.aSwitch, SLID: s.aPort},
					Data: mem.BytesPayload(d.Data[:])}
				r.Headers = native.Headers{Opcode: ib.ServiceUD | ib.SendOnly, PKey: ib.DefaultPKey,
					DestQPN: ib.QPNSMI, SrcQPN: 0x4001}
				s.a.node.lanes.First().Net.Fabric.Send(l.Now(), r, l.HCA.Batch())
			})
		}},

		// The underlay.
		{"datagram from an unknown address", api.ScopeLink, "drop_unknown_peer", func() {
			c, err := net.Dial("udp", fmt.Sprintf("127.0.0.1:%d", s.a.cfg.TrunkPort))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			d := set(mad.AttrPortInfo, 0, evil(of.sw), right)
			p := make([]byte, fabric.MADLen(&d))
			fabric.PutMAD(p, &d, 1)
			h := trunk.Header{Kind: trunk.Data, Stream: 1, Index: 1, Number: 1}
			b := make([]byte, trunk.HeaderLen)
			h.Put(b)
			b = binary.BigEndian.AppendUint16(b, uint16(len(p)))
			if _, err := c.Write(append(b, p...)); err != nil {
				t.Fatal(err)
			}
		}},

		// A peer without the M_Key: every attribute, by both kinds of routes.
		{"peer without M_Key: PortInfo of the switch", api.ScopeAgent, "drop_m_key",
			send(set(mad.AttrPortInfo, 0, evil(of.sw), nil))},
		{"peer with another M_Key: PortInfo of the switch", api.ScopeAgent, "drop_m_key",
			send(set(mad.AttrPortInfo, 0, evil(of.sw), key))},
		{"peer with another M_Key: PortInfo of an adapter", api.ScopeAgent, "drop_m_key",
			send(s.routed(s.aPort, mad.AttrPortInfo, 1, evil(of.port), key))},
		{"peer with another M_Key: LFT", api.ScopeAgent, "drop_m_key", send(set(mad.AttrLFT, 0, lft.Append(nil), key))},
		{"peer with another M_Key: LFT, by LID", api.ScopeAgent, "drop_m_key",
			send(s.routed(s.aSwitch, mad.AttrLFT, 0, lft.Append(nil), key))},
		{"peer with another M_Key: MFT", api.ScopeAgent, "drop_m_key", send(set(mad.AttrMFT, mad.MFTModifier(0, 0),
			mft.Append(nil), key))},
		{"peer with another M_Key: P_Keys of an adapter", api.ScopeAgent, "drop_m_key",
			send(s.routed(s.aPort, mad.AttrPKeyTable, 0, pkeys.Append(nil), key))},
		{"peer with another M_Key: P_Keys of a switch port", api.ScopeAgent, "drop_m_key",
			send(set(mad.AttrPKeyTable, mad.PKeyModifier(1, 0), pkeys.Append(nil), key))},
		{"peer with another M_Key: SwitchInfo", api.ScopeAgent, "drop_m_key",
			send(set(mad.AttrSwitchInfo, 0, switchInfo.Append(nil), key))},
		{"peer with another M_Key: GUIDs", api.ScopeAgent, "drop_m_key",
			send(s.routed(s.aPort, mad.AttrGUIDInfo, 0, guids.Append(nil), key))},
		{"peer with another M_Key: description", api.ScopeAgent, "drop_m_key",
			send(s.routed(s.aPort, mad.AttrNodeDescription, 0, []byte("evil"), key))},
		{"peer with another M_Key: SMInfo", api.ScopeSM, "drop_m_key",
			send(set(mad.AttrSMInfo, mad.SMHandover, sminfo.Append(nil), key))},
		{"forged answer to the manager", api.ScopeSM, "stray", send(s.routed(s.aSwitch, mad.AttrPortInfo, 0,
			evil(of.sw), func(p *mad.SMP) { p.Method = mad.MethodGetResp }))},

		// Wrong for every sender, even with the key.
		{"base version", api.ScopeAgent, "drop_version",
			send(set(mad.AttrPortInfo, 0, evil(of.sw), func(p *mad.SMP) { right(p); p.BaseVersion = 2 }))},
		{"class version", api.ScopeAgent, "refused",
			send(set(mad.AttrPortInfo, 0, evil(of.sw), func(p *mad.SMP) { right(p); p.ClassVersion = 2 }))},
		{"class of queue pair 1 on queue pair 0", api.ScopeAgent, "drop_version",
			send(s.routed(s.aSwitch, mad.AttrPortInfo, 0, evil(of.sw),
				func(p *mad.SMP) { right(p); p.MgmtClass = mad.ClassSA }))},
		{"SMP by queue pair 1", api.ScopeAgent, "drop_bad_addressed", func() {
			d := s.routed(s.aSwitch, mad.AttrPortInfo, 0, evil(of.sw), right)
			d.SrcQPN, d.DstQPN, d.QKey = 1, 1, ib.GSIQKey
			s.datagram(d)
		}},
		{"hop pointer beyond the route", api.ScopeAgent, "drop_route",
			send(set(mad.AttrPortInfo, 0, evil(of.sw), func(p *mad.SMP) { right(p); p.HopPointer = 9 }))},
		{"hop pointer 0", api.ScopeAgent, "drop_route",
			send(set(mad.AttrPortInfo, 0, evil(of.sw), func(p *mad.SMP) { right(p); p.HopPointer = 0 }))},
		{"hop count beyond 63", api.ScopeAgent, "drop_route",
			send(set(mad.AttrPortInfo, 0, evil(of.sw), func(p *mad.SMP) {
				right(p)
				p.HopCount, p.HopPointer = 64,
					64
			}))},
		{"answer that did not come the way it went", api.ScopeAgent, "drop_route",
			send(set(mad.AttrPortInfo, 0, evil(of.sw), func(p *mad.SMP) {
				right(p)
				p.D, p.HopPointer = true, 2
				p.ReturnPath[1] = 1
			}))},
		{"VL 15 packet that is no datagram", api.ScopeLink, "drop_not_transport", raw(15, ib.ServiceRC|ib.SendOnly,
			ib.QPNSMI)},
		{"VL 15 packet to a queue pair of a program", api.ScopeLink, "drop_not_transport",
			raw(15, ib.ServiceUD|ib.SendOnly, 0x4001)},
		{"packet of a data lane to queue pair 0", api.ScopeLink, "drop_not_transport",
			raw(0, ib.ServiceUD|ib.SendOnly, ib.QPNSMI)},
		{"packet in the name of a port of this node", api.ScopeLink, "drop_own_source", func() {
			d := s.routed(s.aSwitch, mad.AttrPortInfo, 0, evil(of.sw), right)
			d.SLID = s.aPort
			s.datagram(d)
		}},

		// Subnet administration.
		{"SA: join for somebody else's port", api.ScopeSA, "refused",
			send(s.administration(mad.MethodSet, mad.AttrMCMemberRecord, joins, join.Append(nil), nil))},
		{"SA: leave for somebody else's port", api.ScopeSA, "refused",
			send(s.administration(mad.MethodDelete, mad.AttrMCMemberRecord, joins, join.Append(nil), nil))},
		{"SA: proxy join of a port of another subnet", api.ScopeSA, "refused", func() {
			m := join
			m.PortGID, m.ProxyJoin = ib.MakeGID(1, join.PortGID.GUID()), true
			s.datagram(s.administration(mad.MethodSet, mad.AttrMCMemberRecord, joins|mad.CompMCProxyJoin,
				m.Append(nil), nil))
		}},
		{"SA: join with another SM_Key", api.ScopeSA, "drop_key",
			send(s.administration(mad.MethodSet, mad.AttrMCMemberRecord, joins, join.Append(nil),
				func(r *mad.SA) { r.SMKey = 5 }))},
		{"SA: service of somebody else", api.ScopeSA, "refused",
			send(s.administration(mad.MethodSet, mad.AttrServiceRecord, 7, service.Append(nil), nil))},
		{"SA: subscription of what nobody may set", api.ScopeSA, "refused",
			send(s.administration(mad.MethodSet, mad.AttrNodeRecord, 1, inform.Append(nil), nil))},
		{"SA: class version", api.ScopeSA, "refused", send(s.administration(mad.MethodSet, mad.AttrMCMemberRecord,
			joins, join.Append(nil), func(r *mad.SA) { r.ClassVersion = 1 }))},
		{"SA: base version", api.ScopeSA, "drop_version", send(s.administration(mad.MethodSet, mad.AttrMCMemberRecord,
			joins, join.Append(nil), func(r *mad.SA) { r.BaseVersion = 2 }))},
		{"SA: LID of nobody", api.ScopeSA, "drop_unknown", func() {
			d := s.administration(mad.MethodSet, mad.AttrMCMemberRecord, joins, join.Append(nil), nil)
			d.SLID = 0x777
			s.datagram(d)
		}},
		{"SA: another Q_Key", api.ScopeAgent, "drop_q_key", func() {
			d := s.administration(mad.MethodSet, mad.AttrMCMemberRecord, joins, join.Append(nil), nil)
			d.QKey = 5
			s.datagram(d)
		}},
		{"SA: another P_Key", api.ScopeAgent, "drop_p_key", func() {
			d := s.administration(mad.MethodSet, mad.AttrMCMemberRecord, joins, join.Append(nil), nil)
			d.PKey = 0x8123
			s.datagram(d)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for try := 0; ; try++ {
				s.settled()
				downs, before, was := s.downs(), s.tables(), s.a.counter(c.scope, c.counter)
				c.do()
				// A trunk that goes down, as where a node gets no processor for long, takes what was sent along, and
				// changes the tables.
				down := func() bool { return try < 3 && s.downs() > downs }
				eventually(t, c.counter+" rises", func() bool {
					return s.a.counter(c.scope, c.counter) > was ||
						down()
				})
				diff := cmp.Diff(before, s.tables())
				if down() {
					t.Log("the trunk went down meanwhile: once more")
					continue
				}
				if diff != "" {
					t.Error(diff)
				}
				return
			}
		})
	}

	// The violations are counted for managers, too, and reported to the manager.
	s.a.node.sub.Do(func() {
		if s.a.node.sub.Switch.Port(0).MKeyViolations == 0 || s.a.node.sub.Port(1).Agent.Port(1).MKeyViolations == 0 {
			t.Error("no M_Key violations at the ports")
		}
	})
	eventually(t, "the manager counts the violations", func() bool {
		return s.a.counter(api.ScopeSM,
			"m_key_violations") > 0
	})
	// The same with the right key is obeyed: the tests above fail for their reasons.
	s.datagram(set(mad.AttrLFT, 3, lft.Append(nil), right))
	eventually(t, "an order of who has the key is obeyed", func() (ok bool) {
		s.a.node.sub.Do(func() { ok = s.a.node.sub.Switch.Forwarding().LFT(3) == lft })
		return ok
	})
}

// managerOf is the subnet manager of a node.
func managerOf(n *Node) *manager.Manager {
	m, _ := n.mgmt.Manager()
	return m
}

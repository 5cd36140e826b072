// SPDX-License-Identifier: Apache-2.0

package vswitch

import (
	"cmp"
	"slices"

	"weft/internal/proto/ib"
)

type (
	lftBlock [BlockLIDs]uint8
	mftBlock [BlockMLIDs]PortSet
)

// noLIDs and noMLIDs are the blocks of a table that was never written.
// Invariant: blocks that a Builder does not own are never written.
var (
	noLIDs  = func() (b lftBlock) { fill(&b); return }()
	noMLIDs mftBlock
)

func fill(b *lftBlock) {
	for i := range b {
		b[i] = NoPort
	}
}

// Port holds the settings of one port that forwarding depends on.
type Port struct {
	State ib.PortState
	// EnforceIn and EnforceOut make the switch compare the partition key of
	// packets that enter or leave by the port with PKeys. Entries with zero
	// low bits are empty. Builder.SetPort takes them in any order, and keeps
	// each partition once, in order, with the higher membership.
	EnforceIn, EnforceOut bool
	PKeys                 []ib.PKey
}

// Globals are the settings of SwitchInfo that forwarding depends on.
type Globals struct {
	LinearTop ib.LID // packets to unicast LIDs above it are dropped
	// MulticastTop bounds the multicast table: LIDs above it count as outside
	// of the table; 0 is no bound, 0xbfff leaves none inside.
	MulticastTop ib.LID
	// Multicast packets to LIDs outside of the table go to PrimaryPort, and
	// those that came in by it to NotPrimaryPort (IBA 18.2.4.3.3).
	PrimaryPort, NotPrimaryPort uint8
}

// Table is one state of a switch. It is immutable, so that any number of
// goroutines may use it. The zero Table has no ports; a Builder makes one.
type Table struct {
	ports []Port
	Globals
	// Derived from the ports' settings: may send data, may receive data, has a
	// link, checks outbound keys.
	send, recv, up, checkOut PortSet

	lft [lftBlocks]*lftBlock
	mft [mftBlocks]*mftBlock
}

// NumPorts returns the highest port number.
func (t *Table) NumPorts() int { return len(t.ports) - 1 }

// Port returns the settings of port p; the caller must not change PKeys. A
// port that does not exist is down.
func (t *Table) Port(p uint8) Port {
	if int(p) >= len(t.ports) {
		return Port{State: ib.PortDown}
	}
	return t.ports[p]
}

// Unicast returns the egress port of a data packet with unicast destination
// dlid, that came in by port in or, from the switch's own queue pairs, port 0.
// Port 0 as the egress delivers to those.
func (t *Table) Unicast(in uint8, dlid ib.LID, key ib.PKey) (out uint8, why Refusal) {
	if why := t.ingress(in, key); why != OK {
		return NoPort, why
	}
	if out, why = t.lookup(in, dlid); why != OK {
		return NoPort, why
	}
	if !t.send.Has(out) {
		return NoPort, EgressState
	}
	if t.checkOut.Has(out) && !allowsOut(t.ports[out].PKeys, key) {
		return NoPort, PKeyOut
	}
	return out, OK
}

// Management returns the egress port of a packet on VL15, which travels
// between ports of any state as long as their links are up, and carries no
// partition key. The permissive LID leads to port 0.
func (t *Table) Management(in uint8, dlid ib.LID) (out uint8, why Refusal) {
	if int(in) >= len(t.ports) {
		return NoPort, BadPort
	}
	if !t.up.Has(in) {
		return NoPort, IngressState
	}
	if dlid == ib.LIDPermissive {
		return 0, OK
	}
	if out, why = t.lookup(in, dlid); why != OK {
		return NoPort, why
	}
	if !t.up.Has(out) {
		return NoPort, EgressState
	}
	return out, OK
}

// Multicast returns the egress ports of a data packet with multicast
// destination mlid, each once and without the ingress port. Ports that are not
// ACTIVE or do not allow the key are left out; why is a refusal only if no port
// remains.
func (t *Table) Multicast(in uint8, mlid ib.LID, key ib.PKey) (out PortSet, why Refusal) {
	if why := t.ingress(in, key); why != OK {
		return PortSet{}, why
	}
	if mlid < ib.LIDMulticastFirst || mlid == ib.LIDPermissive {
		return PortSet{}, BadLID
	}
	if t.MulticastTop == 0 || mlid <= t.MulticastTop {
		m := int(mlid - ib.LIDMulticastFirst)
		out = t.mft[m/BlockMLIDs][m%BlockMLIDs]
	} else {
		p := t.PrimaryPort
		if in == p {
			p = t.NotPrimaryPort
		}
		if int(p) >= len(t.ports) {
			return PortSet{}, Unreachable
		}
		out.Add(p)
	}
	out.Remove(in)
	if out.Empty() {
		return PortSet{}, NoMembers
	}
	if out = out.And(t.send); out.Empty() {
		return PortSet{}, EgressState
	}
	check := out.And(t.checkOut)
	for p, ok := check.Next(); ok; p, ok = check.Next() {
		if !allowsOut(t.ports[p].PKeys, key) {
			out.Remove(p)
		}
	}
	if out.Empty() {
		return PortSet{}, PKeyOut
	}
	return out, OK
}

// Route returns the egress ports of a data packet of either kind.
func (t *Table) Route(in uint8, dlid ib.LID, key ib.PKey) (out PortSet, why Refusal) {
	if dlid >= ib.LIDMulticastFirst && dlid != ib.LIDPermissive {
		return t.Multicast(in, dlid, key)
	}
	p, why := t.Unicast(in, dlid, key)
	if why == OK {
		out.Add(p)
	}
	return out, why
}

// Route24 returns the egress ports of a 16B packet, with a destination LID of 24
// bits.
func (t *Table) Route24(in uint8, dlid uint32, key ib.PKey) (out PortSet, why Refusal) {
	lid, ok := LIDOf24(dlid)
	if !ok {
		return PortSet{}, BadLID
	}
	return t.Route(in, lid, key)
}

// ingress applies the rules that do not depend on the destination.
func (t *Table) ingress(in uint8, key ib.PKey) Refusal {
	if int(in) >= len(t.ports) {
		return BadPort
	}
	if !t.recv.Has(in) {
		return IngressState
	}
	if p := &t.ports[in]; p.EnforceIn && !allowsIn(p.PKeys, key) {
		return PKeyIn
	}
	return OK
}

// lookup returns the port of the linear table's entry.
func (t *Table) lookup(in uint8, dlid ib.LID) (uint8, Refusal) {
	if dlid == 0 || dlid >= ib.LIDMulticastFirst {
		return NoPort, BadLID
	}
	if dlid > t.LinearTop {
		return NoPort, AboveTop
	}
	out := t.lft[dlid/BlockLIDs][dlid%BlockLIDs]
	if int(out) >= len(t.ports) {
		return NoPort, Unreachable
	}
	if out == in {
		return NoPort, Loopback
	}
	return out, OK
}

// allowsIn reports whether a port with the table keys may send with key: it is
// a member of that partition, and a limited member does not send as a full one.
func allowsIn(keys []ib.PKey, key ib.PKey) bool {
	k := find(keys, key)
	return k != noKey && (k == key || k == key|0x8000)
}

// allowsOut reports whether a port with the table keys may receive a packet
// with key: the receiver's own rule (IBA 10.9.3).
func allowsOut(keys []ib.PKey, key ib.PKey) bool { return find(keys, key).Match(key) }

// noKey is an entry of no partition.
const noKey ib.PKey = 0

// find returns the entry of a table, in order, for the partition of key, noKey
// if there is none.
func find(keys []ib.PKey, key ib.PKey) ib.PKey {
	key &= 0x7fff
	if key == 0 {
		return noKey
	}
	for len(keys) > 4 {
		if half := len(keys) / 2; keys[half]&0x7fff <= key {
			keys = keys[half:]
		} else {
			keys = keys[:half]
		}
	}
	for _, k := range keys {
		if k&0x7fff == key {
			return k
		}
	}
	return noKey
}

// inOrder returns the entries that are not empty, each partition once, with the
// higher membership, in the order of partitions.
func inOrder(keys []ib.PKey) []ib.PKey {
	list := make([]ib.PKey, 0, 8)
	for _, k := range keys {
		if k&0x7fff != 0 {
			list = append(list, k)
		}
	}
	slices.SortFunc(list, func(a, b ib.PKey) int { return cmp.Or(int(a&0x7fff)-int(b&0x7fff), int(b)-int(a)) })
	return slices.Clip(slices.CompactFunc(list, func(a, b ib.PKey) bool { return (a^b)&0x7fff == 0 }))
}

// LFT returns block n of the unicast table, the entries of LIDs 64n … 64n+63.
// A block outside of the table is empty.
func (t *Table) LFT(n int) [BlockLIDs]uint8 {
	if n < 0 || n >= lftBlocks || t.lft[n] == nil {
		return noLIDs
	}
	return *t.lft[n]
}

// Entry returns the entry of lid in the unicast table.
func (t *Table) Entry(lid ib.LID) uint8 {
	if lid >= ib.LIDMulticastFirst || t.lft[lid/BlockLIDs] == nil {
		return NoPort
	}
	return t.lft[lid/BlockLIDs][lid%BlockLIDs]
}

// MFT returns position pos of block n of the multicast table: the masks of
// ports 16pos … 16pos+15 for LIDs 0xc000+32n … 0xc000+32n+31.
func (t *Table) MFT(n int, pos uint8) (m [BlockMLIDs]uint16) {
	if n < 0 || n >= mftBlocks || pos >= Positions || t.mft[n] == nil {
		return m
	}
	for i := range m {
		m[i] = t.mft[n][i].Part(pos)
	}
	return m
}

// Members returns the ports of mlid's entry in the multicast table.
func (t *Table) Members(mlid ib.LID) PortSet {
	if mlid < ib.LIDMulticastFirst || mlid == ib.LIDPermissive || t.mft[0] == nil {
		return PortSet{}
	}
	m := int(mlid - ib.LIDMulticastFirst)
	return t.mft[m/BlockMLIDs][m%BlockMLIDs]
}

// Builder edits a switch. Its Table is the present state, for the goroutine that
// owns the Builder; others get a Snapshot. Blocks of tables are shared with the
// snapshots and copied at the first write after a snapshot.
type Builder struct {
	Table
	ownLFT [(lftBlocks + 63) / 64]uint64
	ownMFT [(mftBlocks + 63) / 64]uint64
}

// NewBuilder returns a switch with ports 0 … numPorts, at most MaxPorts: port
// 0 ACTIVE, the others down, tables empty.
func NewBuilder(numPorts uint8) *Builder {
	n := int(min(numPorts, MaxPorts)) + 1
	b := &Builder{Table: Table{ports: make([]Port, n), Globals: Globals{PrimaryPort: NoPort, NotPrimaryPort: NoPort}}}
	for i := range b.lft {
		b.lft[i] = &noLIDs
	}
	for i := range b.mft {
		b.mft[i] = &noMLIDs
	}
	for i := range b.ports {
		b.SetPort(uint8(i), Port{State: ib.PortDown})
	}
	b.SetPort(0, Port{State: ib.PortActive})
	return b
}

// Snapshot returns the present state as an immutable Table.
func (b *Builder) Snapshot() *Table {
	t := b.Table
	t.ports = slices.Clone(b.ports)
	clear(b.ownLFT[:])
	clear(b.ownMFT[:])
	return &t
}

// SetGlobals replaces the settings of the whole switch.
func (b *Builder) SetGlobals(g Globals) { b.Globals = g }

// SetPort replaces the settings of port p and keeps a copy of its keys. A
// port that does not exist is ignored.
func (b *Builder) SetPort(p uint8, c Port) {
	if int(p) >= len(b.ports) {
		return
	}
	c.PKeys = inOrder(c.PKeys)
	b.ports[p] = c
	set := func(s *PortSet, on bool) {
		if s.Remove(p); on {
			s.Add(p)
		}
	}
	set(&b.send, c.State == ib.PortActive)
	set(&b.recv, c.State == ib.PortArmed || c.State == ib.PortActive)
	set(&b.up, c.State >= ib.PortInit && c.State <= ib.PortActive)
	set(&b.checkOut, c.EnforceOut)
}

// SetState replaces the state of port p alone.
func (b *Builder) SetState(p uint8, s ib.PortState) {
	if int(p) < len(b.ports) {
		c := b.ports[p]
		c.State = s
		b.SetPort(p, c)
	}
}

// SetLFT replaces block n of the unicast table and reports whether there is
// such a block. Entries above the last port have no egress port, and read back
// as they were written.
func (b *Builder) SetLFT(n int, entries *[BlockLIDs]uint8) bool {
	if n < 0 || n >= lftBlocks {
		return false
	}
	*b.lftBlock(n) = *entries
	return true
}

// SetEntry replaces the entry of one unicast LID and reports whether lid is
// one.
func (b *Builder) SetEntry(lid ib.LID, port uint8) bool {
	if lid >= ib.LIDMulticastFirst {
		return false
	}
	b.lftBlock(int(lid) / BlockLIDs)[lid%BlockLIDs] = port
	return true
}

// SetMFT replaces position pos of block n of the multicast table and reports
// whether there is such a part. Bits of ports that do not exist are dropped.
func (b *Builder) SetMFT(n int, pos uint8, masks *[BlockMLIDs]uint16) bool {
	if n < 0 || n >= mftBlocks || pos >= Positions {
		return false
	}
	var exist PortSet
	for p := range b.ports {
		exist.Add(uint8(p))
	}
	blk, have := b.mftBlock(n), exist.Part(pos)
	for i, m := range masks {
		blk[i].SetPart(pos, m&have)
	}
	return true
}

func (b *Builder) lftBlock(n int) *lftBlock {
	if own := &b.ownLFT[n/64]; *own>>(n%64)&1 == 0 {
		*own |= 1 << (n % 64)
		c := *b.lft[n]
		b.lft[n] = &c
	}
	return b.lft[n]
}

func (b *Builder) mftBlock(n int) *mftBlock {
	if own := &b.ownMFT[n/64]; *own>>(n%64)&1 == 0 {
		*own |= 1 << (n % 64)
		c := *b.mft[n]
		b.mft[n] = &c
	}
	return b.mft[n]
}

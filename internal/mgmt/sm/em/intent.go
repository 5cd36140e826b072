// SPDX-License-Identifier: Apache-2.0

package em

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

// Bounds of an intent.
const (
	MaxVESWs    = 1024
	MaxMembers  = 4096 // of a VESW
	MaxName     = 64
	MaxID       = 4095
	MaxFabricID = 1023
	MinMTU      = 68
	// MaxMTU leaves room for an Ethernet header and a VLAN tag in the largest packet of Omni-Path links.
	MaxMTU = MaxLinkMTU - 18
	// MaxLinkMTU is the default MTU of a link that carries 16B packets.
	MaxLinkMTU = 10240
	// DefaultMaxMACs is the default limit of MACs of a member.
	DefaultMaxMACs = 512
)

// MAC is an Ethernet address.
type MAC [6]byte

func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// MarshalText implements encoding.TextMarshaler.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *MAC) UnmarshalText(b []byte) error {
	s := strings.ReplaceAll(string(b), ":", "")
	p, err := hex.DecodeString(s)
	if err != nil || len(p) != len(m) {
		return fmt.Errorf("%q is no MAC", b)
	}
	*m = MAC(p)
	return nil
}

// IsMulticast reports whether m is a multicast or the broadcast address.
func (m MAC) IsMulticast() bool { return m[0]&1 != 0 }

// Intent is the configuration of virtual Ethernet switches. It is plain data; the zero value has none.
type Intent struct {
	FabricID uint16 // 10 bits
	// ByteIDs makes identifiers differ in their low eight bits: some agents do not distinguish others.
	ByteIDs bool `json:",omitempty"`
	// LastID is the last identifier assigned: a new VESW does not get one that has just become free.
	LastID uint16 `json:",omitempty"`
	VESWs  []VESW `json:",omitempty"`
}

// VESW is the configuration of a virtual Ethernet switch.
type VESW struct {
	Name string
	ID   uint16
	// PKey is the partition, bit 15 ignored; 0: a partition of its own, of which its members are full members (Key).
	PKey ib.PKey `json:",omitempty"`
	MTU  uint16  `json:",omitempty"` // 0: 1500
	// Flood sends frames to an unknown MAC to all members if there is no gateway.
	Flood bool `json:",omitempty"`
	// NoUserMACs permits members only the MAC that the manager assigned.
	NoUserMACs bool   `json:",omitempty"`
	MaxMACs    uint16 `json:",omitempty"` // of a member; 0: DefaultMaxMACs
	// SL is the service level, and so channel, of frames without a VLAN tag; PCP that of tagged frames by priority, if
	// it is set.
	SL      uint8     `json:",omitempty"`
	PCP     *[8]uint8 `json:",omitempty"`
	Members []Member  `json:",omitempty"`
}

// Member is a port of a VESW: a vport of a port of the fabric.
type Member struct {
	Port  ib.GUID
	Index uint8 // of the vport
	// Num is the number of the port within the VESW, from 1.
	Num uint32
	// Gateway makes it a default port: it receives frames to unknown MACs.
	Gateway bool `json:",omitempty"`
}

// ownKeys and the following are the P_Keys of VESWs with a partition of their own.
const ownKeys ib.PKey = 0xc000

// Key returns the P_Key of the partition of the VESW, with bit 15.
func (v *VESW) Key() ib.PKey {
	if v.PKey != 0 {
		return v.PKey | 0x8000
	}
	return ownKeys | ib.PKey(v.ID)
}

// OwnPartition reports whether the partition belongs to the VESW alone: the manager sets its members.
func (v *VESW) OwnPartition() bool { return v.PKey == 0 }

// MaxIndex is the highest index of a vport.
const MaxIndex = 254

// Validate reports every fault of i, joined.
func (i *Intent) Validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if i.FabricID > MaxFabricID {
		fault("fabric id %d: want 0 to %d", i.FabricID, MaxFabricID)
	}
	if len(i.VESWs) > MaxVESWs {
		fault("%d virtual Ethernet switches: want %d at most", len(i.VESWs), MaxVESWs)
	}
	names, ids, vports, own := map[string]bool{}, map[uint16]string{}, map[vportID]string{}, map[ib.PKey]string{}
	for k := range i.VESWs {
		if v := &i.VESWs[k]; v.OwnPartition() {
			own[v.Key()] = v.Name
		}
	}
	for k := range i.VESWs {
		v := &i.VESWs[k]
		if err := checkName(v.Name); err != nil {
			errs = append(errs, err)
		} else if names[v.Name] {
			fault("there is a virtual Ethernet switch %q already", v.Name)
		}
		names[v.Name] = true
		if v.ID == 0 || v.ID > MaxID || i.ByteIDs && v.ID&0xff == 0 {
			fault("%s: id %d: want 1 to %d%s", v.Name, v.ID, MaxID, i.modulo())
		} else if other, taken := ids[i.key(v.ID)]; taken {
			fault("%s and %s: ids that are one: %d%s", other, v.Name, v.ID, i.modulo())
		}
		ids[i.key(v.ID)] = v.Name
		if other := own[v.Key()]; other != "" && other != v.Name {
			fault("%s: P_Key %#04x is the partition that %s has for itself", v.Name, uint16(v.Key()), other)
		}
		for _, err := range v.check() {
			fault("%s: %w", v.Name, err)
		}
		for _, m := range v.Members {
			id := vportID{m.Port, m.Index}
			if other, taken := vports[id]; taken && other != v.Name {
				fault("%s and %s: both have vport %d of port %v", other, v.Name, m.Index, m.Port)
			}
			vports[id] = v.Name
		}
	}
	return errors.Join(errs...)
}

// vportID identifies a vport of the fabric.
type vportID struct {
	port  ib.GUID
	index uint8
}

// key returns the part of an identifier that must be unique.
func (i *Intent) key(id uint16) uint16 {
	if i.ByteIDs {
		return id & 0xff
	}
	return id
}

func (i *Intent) modulo() string {
	if i.ByteIDs {
		return " in their low eight bits"
	}
	return ""
}

func checkName(s string) error {
	bad := func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("._-", r) || r > unicode.MaxASCII
	}
	if s == "" || len(s) > MaxName || strings.ContainsFunc(s, bad) || strings.Trim(s, ".") == "" {
		return fmt.Errorf("the name %q: want 1 to %d letters, digits, dots, dashes and underscores", s, MaxName)
	}
	return nil
}

// check reports the faults of one VESW.
func (v *VESW) check() (errs []error) {
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if v.PKey != 0 && v.PKey&0x7fff == 0 {
		fault("P_Key %#04x: its low 15 bits are zero", v.PKey)
	}
	if v.MTU != 0 && (v.MTU < MinMTU || v.MTU > MaxMTU) {
		fault("MTU %d: want %d to %d", v.MTU, MinMTU, MaxMTU)
	}
	if v.MaxMACs > mad.VESWMaxMACs {
		fault("%d MACs of a member: want %d at most", v.MaxMACs, mad.VESWMaxMACs)
	}
	levels := []uint8{v.SL}
	if v.PCP != nil {
		levels = append(levels, v.PCP[:]...)
	}
	if slices.ContainsFunc(levels, func(sl uint8) bool { return sl >= 15 }) {
		fault("service levels %d: want 0 to 14, of which 15 is not one", levels)
	}
	if len(v.Members) > MaxMembers {
		fault("%d members: want %d at most", len(v.Members), MaxMembers)
	}
	nums, ports, gateways := map[uint32]bool{}, map[ib.GUID]bool{}, 0
	for _, m := range v.Members {
		switch {
		case m.Port == 0:
			fault("a member without a port")
		case ports[m.Port]:
			fault("port %v is a member twice: a port of the fabric has one vport in a virtual Ethernet switch", m.Port)
		case m.Index > MaxIndex:
			fault("vport %d of port %v: want 0 to %d", m.Index, m.Port, MaxIndex)
		case m.Num == 0 || nums[m.Num]:
			fault("port %v has the number %d, which is zero or another's", m.Port, m.Num)
		}
		ports[m.Port], nums[m.Num] = true, true
		if m.Gateway {
			gateways++
		}
	}
	if gateways > mad.VESWGateways {
		fault("%d gateways: want %d at most", gateways, mad.VESWGateways)
	}
	return errs
}

// Errors of edits, for callers that add a fix.
var (
	ErrNoVESW   = errors.New("there is no such virtual Ethernet switch")
	ErrNoMember = errors.New("the port is no member")
	ErrNoRoom   = errors.New("there is no room")
)

// Find returns the VESW with a name, nil if there is none.
func (i *Intent) Find(name string) *VESW {
	k := slices.IndexFunc(i.VESWs, func(v VESW) bool { return v.Name == name })
	if k < 0 {
		return nil
	}
	return &i.VESWs[k]
}

// FreeIDs are the identifiers that no VESW of an intent has, from the last one that was assigned on.
type FreeIDs struct {
	i     *Intent
	taken map[uint16]bool
	next  uint16 // how many were looked at
}

// FreeIDs returns the identifiers that are free. They are those of i as it is now.
func (i *Intent) FreeIDs() *FreeIDs {
	f := &FreeIDs{i: &Intent{ByteIDs: i.ByteIDs, LastID: i.LastID}, taken: map[uint16]bool{i.key(0): i.ByteIDs}}
	for _, o := range i.VESWs {
		if o.ID != 0 {
			f.taken[i.key(o.ID)] = true
		}
	}
	return f
}

// Next takes one; the error is ErrNoRoom.
func (f *FreeIDs) Next() (uint16, error) {
	for ; f.next < MaxID; f.next++ {
		if id := (f.i.LastID+f.next)%MaxID + 1; !f.taken[f.i.key(id)] {
			f.taken[f.i.key(id)] = true
			return id, nil
		}
	}
	return 0, fmt.Errorf("every identifier is taken: %w", ErrNoRoom)
}

// Create adds v. It assigns an identifier if v has none.
func (i *Intent) Create(v VESW) error {
	if v.ID == 0 {
		var err error
		if v.ID, err = i.FreeIDs().Next(); err != nil {
			return err
		}
	}
	was := *i
	i.VESWs = append(slices.Clone(i.VESWs), v)
	i.LastID = v.ID
	if err := i.Validate(); err != nil {
		*i = was
		return err
	}
	return nil
}

// Delete removes the VESW with a name.
func (i *Intent) Delete(name string) error {
	n := len(i.VESWs)
	i.VESWs = slices.DeleteFunc(slices.Clone(i.VESWs), func(v VESW) bool { return v.Name == name })
	if len(i.VESWs) == n {
		return ErrNoVESW
	}
	return nil
}

// Add adds a port as a member, or changes whether it is a gateway. With index < 0 it chooses a vport that no VESW has.
func (i *Intent) Add(name string, port ib.GUID, index int, gateway bool) (m Member, err error) {
	v := i.Find(name)
	if v == nil {
		return m, ErrNoVESW
	}
	if k := slices.IndexFunc(v.Members, func(m Member) bool { return m.Port == port }); k >= 0 {
		if index >= 0 && v.Members[k].Index != uint8(index) {
			return m, fmt.Errorf("it is a member already, as vport %d", v.Members[k].Index)
		}
		v.Members[k].Gateway = gateway
		return v.Members[k], i.Validate()
	}
	taken := map[uint8]string{}
	for _, o := range i.VESWs {
		for _, m := range o.Members {
			if m.Port == port {
				taken[m.Index] = o.Name
			}
		}
	}
	m = Member{Port: port, Num: 1, Gateway: gateway}
	switch {
	case index > MaxIndex:
		return m, fmt.Errorf("vport %d: want 0 to %d", index, MaxIndex)
	case index >= 0 && taken[uint8(index)] != "":
		return m, fmt.Errorf("vport %d of the port is in %s", index, taken[uint8(index)])
	case index >= 0:
		m.Index = uint8(index)
	default:
		for taken[m.Index] != "" && m.Index < MaxIndex {
			m.Index++
		}
		if taken[m.Index] != "" {
			return m, fmt.Errorf("every vport of the port is taken: %w", ErrNoRoom)
		}
	}
	nums := make(map[uint32]bool, len(v.Members))
	for _, o := range v.Members {
		nums[o.Num] = true
	}
	for nums[m.Num] {
		m.Num++
	}
	v.Members = append(slices.Clone(v.Members), m)
	return m, i.Validate()
}

// Remove removes a port from a VESW; index < 0 is any vport that it has there.
func (i *Intent) Remove(name string, port ib.GUID, index int) error {
	v := i.Find(name)
	if v == nil {
		return ErrNoVESW
	}
	n := len(v.Members)
	v.Members = slices.DeleteFunc(slices.Clone(v.Members), func(m Member) bool {
		return m.Port == port && (index < 0 || m.Index == uint8(index))
	})
	if len(v.Members) == n {
		return ErrNoMember
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"time"
)

// Desired is what operators configured: of the fabric, and of one node. A list that is nil is not stated, which leaves
// it as it is; one that is empty has no element. Line of an element is where a file has it, from 1, 0 where it is from
// no file.
//
// The yaml tags are the names in a file (docs/operating.md). With "any" a text may be written as a number.
type Desired struct {
	Subnet     *DesiredSubnet     `json:"subnet" yaml:"subnet"`
	Partitions []DesiredPartition `json:"partitions" yaml:"partitions"`
	Ethernet   *DesiredEthernet   `json:"ethernet" yaml:"ethernet"`
	VESWs      []DesiredVESW      `json:"vesws" yaml:"vesws"`
	Groups     []DesiredGroup     `json:"groups" yaml:"groups"`
	Node       *DesiredNode       `json:"node,omitempty" yaml:"node"` // nil where the fabric alone is meant
}

// DesiredSubnet is how the subnet is managed; see ManagerChange.
type DesiredSubnet struct {
	Line    int      `json:"line,omitempty" yaml:"-"`
	Routing string   `json:"routing" yaml:"routing"` // empty: the default
	Roots   []string `json:"roots" yaml:"roots,any" order:"given: as it is kept"`
	Protect int      `json:"m_key_protect" yaml:"m_key_protect"` // 0: the default
	LeaseS  int      `json:"m_key_lease_s" yaml:"m_key_lease_s"` // 0: the default
}

// DesiredPartition is a partition. Members are PORT, PORT=full or PORT=limited, where PORT is AllPorts, a GUID, or
// DEVICE@NODE.
type DesiredPartition struct {
	Line    int      `json:"line,omitempty" yaml:"-"`
	Name    string   `json:"name" yaml:"name"`
	PKey    string   `json:"pkey" yaml:"pkey,any" order:"1"`
	Apart   bool     `json:"apart" yaml:"apart"` // ports stay full members of the default partition
	Members []string `json:"members" yaml:"members,any" order:"given: as it is kept"`
}

// DesiredEthernet is common to all virtual Ethernet switches; see VESWCreate.
type DesiredEthernet struct {
	Line     int  `json:"line,omitempty" yaml:"-"`
	FabricID int  `json:"fabric_id" yaml:"fabric_id"`
	ByteIDs  bool `json:"byte_ids" yaml:"byte_ids"`
}

// DesiredVESW is a virtual Ethernet switch; see VESWCreate.
type DesiredVESW struct {
	Line       int               `json:"line,omitempty" yaml:"-"`
	Name       string            `json:"name" yaml:"name" order:"1"`
	ID         int               `json:"id" yaml:"id"`
	PKey       string            `json:"pkey" yaml:"pkey,any"`
	MTU        int               `json:"mtu" yaml:"mtu"`
	Flood      bool              `json:"flood" yaml:"flood"`
	NoUserMACs bool              `json:"no_user_macs" yaml:"no_user_macs"`
	MaxMACs    int               `json:"max_macs" yaml:"max_macs"`
	SL         int               `json:"sl" yaml:"sl"`
	PCP        []int             `json:"pcp" yaml:"pcp" order:"given: by priority"`
	Ports      []DesiredVESWPort `json:"ports" yaml:"ports" order:"given: as it is kept"`
}

// DesiredVESWPort is a port of a virtual Ethernet switch.
type DesiredVESWPort struct {
	Line    int    `json:"line,omitempty" yaml:"-"`
	Port    string `json:"port" yaml:"port,any"`
	VPort   *int   `json:"vport" yaml:"vport"`   // nil: that it has, or the lowest that is free
	Number  int    `json:"number" yaml:"number"` // 0: that it has, or the lowest that is free
	Gateway bool   `json:"gateway" yaml:"gateway"`
}

// DesiredGroup is a permanent multicast group; see GroupJoin.
type DesiredGroup struct {
	Line    int      `json:"line,omitempty" yaml:"-"`
	MGID    string   `json:"mgid" yaml:"mgid" order:"1"`
	PKey    string   `json:"pkey" yaml:"pkey,any"` // empty: the default partition
	QKey    string   `json:"qkey" yaml:"qkey,any"` // empty: chosen
	MTU     int      `json:"mtu" yaml:"mtu"`       // bytes; 0: 2048
	Members []string `json:"members" yaml:"members,any" order:"given: as it is kept"`
}

// DesiredNode is what a node keeps of its devices and IP links.
type DesiredNode struct {
	Line    int             `json:"line,omitempty" yaml:"-"`
	GUID    string          `json:"guid" yaml:"guid,any"`
	Devices []DesiredDevice `json:"devices" yaml:"devices"` // that were added
	Links   []DesiredLink   `json:"links" yaml:"links"`
}

// DesiredDevice is a device that was added; see NewFunction.
type DesiredDevice struct {
	Line      int            `json:"line,omitempty" yaml:"-"`
	Name      string         `json:"name" yaml:"name" order:"1"`
	Disabled  bool           `json:"disabled" yaml:"disabled"`
	Weight    int            `json:"weight" yaml:"weight"`
	QoS       map[string]int `json:"qos" yaml:"qos"`
	Quotas    map[string]int `json:"quotas" yaml:"quotas"` // by the names in JSON of Quotas
	Segment   string         `json:"segment" yaml:"segment"`
	Addresses []string       `json:"addresses" yaml:"addresses" order:"given: as it is kept"`
	Routes    []string       `json:"routes" yaml:"routes" order:"given: as it is kept"`
}

// DesiredLink is a request for IP links; see IPRequest.
type DesiredLink struct {
	Line      int      `json:"line,omitempty" yaml:"-"`
	Device    string   `json:"device" yaml:"device" order:"1"` // empty: every device
	PKeys     []string `json:"pkeys" yaml:"pkeys,any" order:"given: as it is kept"`
	Addresses []string `json:"addresses" yaml:"addresses" order:"given: as it is kept"`
	Routes    []string `json:"routes" yaml:"routes" order:"given: as it is kept"`
	Params    []string `json:"params" yaml:"params" order:"given: as it is kept"`
}

// DesiredChange is a difference between what is configured and what shall be.
type DesiredChange struct {
	Kind string `json:"kind"` // ChangeAdd, ChangeDelete or ChangeModify
	What string `json:"what"` // as in "partition red (0x8001)"
	How  string `json:"how"`  // what is different of it
}

// Kinds of DesiredChange.
const (
	ChangeAdd    = "add"
	ChangeDelete = "delete"
	ChangeModify = "change"
)

// Comparison is what a change of the configuration would do, or has done.
type Comparison struct {
	Changes []DesiredChange `json:"changes" order:"given: section by section, deletions first"`
	// Lost is what it takes away, nil where that is nothing.
	Lost *LostContact `json:"lost"`
}

// HistoryEntry is a change of the configuration.
type HistoryEntry struct {
	Number uint64    `json:"number" order:"1"`
	At     time.Time `json:"at"`
	Member string    `json:"member"` // empty: of no fabric
	UID    int       `json:"uid"`    // -1: the node itself
	User   string    `json:"user"`
	Op     string    `json:"op"`
	Text   string    `json:"text"`
}

// Since is the time from which on history is requested, in RFC 3339; empty: all of it.
type Since string

// Validate refuses what is no time.
func (s *Since) Validate() error {
	if *s == "" {
		return nil
	}
	if _, err := time.Parse(time.RFC3339, string(*s)); err != nil {
		return errors.New("since must be a time such as 2026-11-23T14:00:00Z")
	}
	return nil
}

// Time is the time, the zero Time for all of it.
func (s Since) Time() time.Time {
	t, _ := time.Parse(time.RFC3339, string(s)) // it was validated
	return t
}

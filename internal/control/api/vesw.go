// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
)

// VESW is a virtual Ethernet switch: as it is intended, and, from the master, as it is.
type VESW struct {
	Name string `json:"name" order:"1"`
	ID   int    `json:"id" order:"2"`
	PKey string `json:"pkey"`
	// OwnPartition reports that the partition is the switch's alone: its members are those of the switch.
	OwnPartition bool   `json:"own_partition"`
	FabricID     int    `json:"fabric_id"`
	MTU          int    `json:"mtu"`        // of what follows the Ethernet header, as it is intended
	ActiveMTU    int    `json:"active_mtu"` // as it is; 0: not known
	MLID         string `json:"mlid"`       // of the multicast group, as 16B packets have it; empty: none, or not known
	Flood        bool   `json:"flood"`
	UserMACs     bool   `json:"user_macs"` // members may have MACs of their own
	MaxMACs      int    `json:"max_macs"`  // of a member
	SL           int    `json:"sl"`
	PCP          []int  `json:"pcp" order:"given: by priority"` // service level of tagged frames by priority; empty: SL
	// State is up, degraded (for the reasons in Problems), configuring, or unknown: this node's manager is not the
	// master.
	State    string        `json:"state"`
	MACs     int           `json:"macs"` // in its tables
	Ports    []VESWPort    `json:"ports"`
	Problems []VESWProblem `json:"problems"`
}

// States of a VESW.
const (
	VESWUp          = "up"
	VESWDegraded    = "degraded"
	VESWConfiguring = "configuring"
	VESWUnknown     = "unknown"
)

// VESWPort is a member of a VESW.
type VESWPort struct {
	GUID    string `json:"guid" order:"2"`
	VPort   int    `json:"vport" order:"3"`
	Number  int    `json:"number" order:"1"` // within the VESW
	Gateway bool   `json:"gateway"`
	// What follows is known to the master only.
	Name    string   `json:"name"` // of the port's node; empty: not in the subnet
	LID     int      `json:"lid"`
	Agent   string   `json:"agent"` // asked, present, none, silent; empty: not in the subnet
	BaseMAC string   `json:"base_mac"`
	State   string   `json:"state"` // absent, waiting, configuring, dropping, down, forwarding
	Default bool     `json:"default"`
	MACs    []string `json:"macs" order:"value"` // of its own
	Groups  []string `json:"groups" order:"value"`
	Differs
}

// VESWProblem is a difference between a VESW and its intent.
type VESWProblem struct {
	Port string `json:"port" order:"1"` // GUID; empty: the VESW itself
	What string `json:"what" order:"2"`
	Fix  string `json:"fix"`
}

// VESWCreate is a VESW that shall be. What is zero is chosen.
type VESWCreate struct {
	Name       string `json:"name"`
	ID         int    `json:"id"`
	PKey       string `json:"pkey"` // empty: a partition of its own
	MTU        int    `json:"mtu"`
	Flood      bool   `json:"flood"`
	NoUserMACs bool   `json:"no_user_macs"`
	MaxMACs    int    `json:"max_macs"`
	SL         int    `json:"sl"`
	PCP        []int  `json:"pcp"` // eight, or none
	// FabricID and ByteIDs are of all VESWs: the fabric's number in MACs, and that identifiers differ in their low
	// eight bits. Nil stays.
	FabricID *int  `json:"fabric_id,omitempty"`
	ByteIDs  *bool `json:"byte_ids,omitempty"`
}

// VESWChange is what shall be different of a VESW; what is nil stays.
type VESWChange struct {
	PKey     *string `json:"pkey,omitempty"` // empty: a partition of its own
	MTU      *int    `json:"mtu,omitempty"`  // 0: the usual one
	Flood    *bool   `json:"flood,omitempty"`
	UserMACs *bool   `json:"user_macs,omitempty"`
	MaxMACs  *int    `json:"max_macs,omitempty"` // 0: the usual number
	SL       *int    `json:"sl,omitempty"`
}

// Validate reports whether anything shall be different.
func (c *VESWChange) Validate() error {
	if *c == (VESWChange{}) {
		return errors.New("nothing is to be changed")
	}
	return nil
}

// VESWPortAdd is a port that shall be a member.
type VESWPortAdd struct {
	Port    string `json:"port"`  // named as members of partitions are
	VPort   *int   `json:"vport"` // nil: the lowest that is free
	Gateway bool   `json:"gateway"`
}

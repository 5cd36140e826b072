// SPDX-License-Identifier: Apache-2.0

package mad

import (
	"bytes"
	"fmt"
)

// NodeType is the kind of a node.
type NodeType uint8

// Node types.
const (
	NodeCA NodeType = 1 + iota
	NodeSwitch
	NodeRouter
)

var nodeTypeNames = [...]string{"NodeType(0)", "Channel Adapter", "Switch", "Router"}

// String returns the name that the InfiniBand diagnostics print.
func (t NodeType) String() string {
	if int(t) < len(nodeTypeNames) {
		return nodeTypeNames[t]
	}
	return fmt.Sprintf("NodeType(%d)", uint8(t))
}

// MakeNodeDescription returns s as a NodeDescription, truncated if it is too long.
func MakeNodeDescription(s string) (d NodeDescription) {
	copy(d[:], s)
	return d
}

// String returns the text without its padding.
func (d *NodeDescription) String() string {
	text, _, _ := bytes.Cut(d[:], []byte{0})
	return string(text)
}

// LifeTimeInfinite is the smallest LifeTimeValue without an end; a smaller v is 4.096 µs × 2^v.
const LifeTimeInfinite = 0x14

// SMState is the state of a subnet manager.
type SMState uint8

// States of a subnet manager.
const (
	SMNotActive SMState = iota
	SMDiscovering
	SMStandby
	SMMaster
)

var smStateNames = [...]string{"SMINFO_NOTACT", "SMINFO_DISCOVER", "SMINFO_STANDBY", "SMINFO_MASTER"}

// String returns the name that the InfiniBand diagnostics print.
func (s SMState) String() string {
	if int(s) < len(smStateNames) {
		return smStateNames[s]
	}
	return fmt.Sprintf("SMState(%d)", uint8(s))
}

// Modifiers of a Set of SMInfo.
const (
	SMHandover    = 1
	SMAcknowledge = 2
	SMDisable     = 3
	SMStandbyReq  = 4
	SMDiscover    = 5
)

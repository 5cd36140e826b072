// SPDX-License-Identifier: Apache-2.0

package api

import "fmt"

var (
	// GetTrunkPlan describes the trunks that members of the fabric shall have. Any member answers; on a host that is in
	// no fabric the plan is empty.
	GetTrunkPlan = Op[None, TrunkPlan]{Method: "GET", Path: "/fabric/plan", What: "cannot show the plan of trunks",
		Access: ReadAccess}

	// SetMember gives a member a role in the plan of trunks.
	SetMember = Op[Named[MemberShape], None]{Method: "PATCH", Path: "/members/{name}/role",
		What: "cannot change the role", Access: FullAccess, Fix: "weft member set --help"}
)

// TrunkPlan is the trunks that members shall have, and how far they are.
type TrunkPlan struct {
	Form    string          `json:"form"` // mesh, spines, cores, narrow; empty: the host is in no fabric
	Members []PlannedMember `json:"members"`
	Trunks  []PlannedTrunk  `json:"trunks"`
	Limits  []PlanLimit     `json:"limits"`
}

// PlannedMember is a member in the plan.
type PlannedMember struct {
	Name   string `json:"name" order:"1"`
	Level  string `json:"level"` // leaf, spine, core; empty in a mesh
	Pod    *int   `json:"pod"`   // null without a level
	Trunks int    `json:"trunks"`
	// Ports are those of its switch, for devices and trunks; 0: not reported yet.
	Ports int `json:"ports"`
	// Settled: it has reported that all its planned trunks are up.
	Settled bool `json:"settled"`
}

// States of a PlannedTrunk.
const (
	TrunkUp      = "up"
	TrunkDown    = "down"
	TrunkMissing = "missing"
	TrunkSurplus = "surplus" // not planned any more, and still there
)

// PlannedTrunk is a trunk that two members shall have, or have and shall not. States of trunks of other members are
// what these have reported.
type PlannedTrunk struct {
	A     string `json:"a" order:"1"`
	B     string `json:"b" order:"2"`
	State string `json:"state"`
	Why   string `json:"why"` // it is not up
}

// PlanLimit is what ports, addresses or roles do not allow. A note leaves no trunk out.
type PlanLimit struct {
	What    string   `json:"what" order:"1"`
	Note    bool     `json:"note"`
	Members []string `json:"members" order:"value"`
	Why     string   `json:"why" order:"2"`
	Fix     string   `json:"fix"`
}

// MemberShape is the role of a member in the plan of trunks.
type MemberShape struct {
	Role string `json:"role"` // spine, leaf, or any: neither
}

// Validate reports what is wrong with the role.
func (m *MemberShape) Validate() error {
	switch m.Role {
	case "spine", "leaf", "any":
		return nil
	}
	return fmt.Errorf("a role in the plan of trunks is spine, leaf or any, not %q", m.Role)
}

// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"time"
)

// Members of the fabric, and tokens by which hosts join it. Any member answers; changes need the role administrator.
var (
	ListMembers = Op[None, []FabricMember]{Method: "GET", Path: "/members", What: "cannot list members",
		Access: ReadAccess}

	// RenameMember gives a member another name.
	RenameMember = Op[Named[MemberName], None]{Method: "PATCH", Path: "/members/{name}",
		What: "cannot rename the member", Access: FullAccess}

	// DrainMember begins or ends a drain. The answer is the member with what still uses it.
	DrainMember = Op[Named[MemberDrain], FabricMember]{Method: "POST", Path: "/members/{name}/drain",
		What: "cannot drain the member", Access: FullAccess}

	// RemoveMember removes a member: it is out when the answer comes.
	RemoveMember = Op[MemberRemoval, RemovedMember]{Method: "DELETE", Path: "/members/{name}?force",
		What: "cannot remove the member", Access: FullAccess}

	// RotateSecrets replaces the tokens, the M_Key and, step by step, the CA with all certificates. No member goes.
	RotateSecrets = Op[None, RotatedSecrets]{Method: "POST", Path: "/members/rotation",
		What: "cannot replace the secrets of the fabric", Access: FullAccess}

	ListTokens = Op[None, []Token]{Method: "GET", Path: "/tokens", What: "cannot list tokens", Access: FullAccess}

	// CreateToken makes a token. On a host that is in no fabric, it makes a fabric with this host as its first member.
	CreateToken = Op[NewToken, Token]{Method: "POST", Path: "/tokens", What: "cannot make a token", Access: FullAccess,
		Fix: "weft token --help"}

	DeleteToken = Op[string, None]{Method: "DELETE", Path: "/tokens/{id}",
		What: "cannot delete the token", Access: FullAccess}
)

// FabricMember is a member of the fabric.
type FabricMember struct {
	Name  string   `json:"name" order:"1"`
	GUID  string   `json:"guid"`
	Roles []string `json:"roles" order:"given: in that of weft token --roles"`
	// State is joining, active, draining or drained.
	State           string    `json:"state"`
	Self            bool      `json:"self"` // it is this node
	Addresses       []string  `json:"addresses" order:"given: as members try them"`
	Joined          time.Time `json:"joined"`
	By              string    `json:"by"` // its author: a token of a member
	CertificateEnds time.Time `json:"certificate_ends"`
	Program         string    `json:"program"` // its version of weft, empty before its first report
	// Users keep a drain waiting; MoreUsers is how many there are beyond the list.
	Users     []MemberUser `json:"users"`
	MoreUsers int          `json:"more_users"`
	// Ended are users that a drain by force has ended; only the answer of DrainMember has some.
	Ended []MemberUser `json:"ended,omitempty"`
}

// MemberUser is what uses a member: a program, a guest, an IP link, or an interface at a virtual Ethernet switch.
type MemberUser struct {
	Kind string `json:"kind" order:"1"`
	Name string `json:"name" order:"2"`
	PID  int    `json:"pid" order:"3"`
	UID  int    `json:"uid"`
}

// MemberName is another name for a member.
type MemberName struct {
	Name string `json:"name"`
}

// MemberDrain begins a drain, or ends it. With Force, what uses the member is ended.
type MemberDrain struct {
	Drain bool `json:"drain"`
	Force bool `json:"force"`
}

// MemberRemoval names a member to remove. With Force it need not be drained.
type MemberRemoval struct {
	Name  string `param:"name"`
	Force bool   `param:"force"`
}

// RemovedMember is a member that is out, and the kinds of secrets that were replaced since it had them.
type RemovedMember struct {
	Name     string   `json:"name"`
	Replaced []string `json:"replaced" order:"given: as they are replaced"`
}

// RotatedSecrets are the kinds of secrets that were replaced, and those of which the replacement goes on by itself.
type RotatedSecrets struct {
	Replaced []string `json:"replaced" order:"given: as they are replaced"`
	Begun    []string `json:"begun" order:"given: as they are replaced"`
}

// NewToken is a token to make.
type NewToken struct {
	// Roles are those that it gives, "member" for none; empty: all that a host can have.
	Roles string `json:"roles"`
	// Uses is how many hosts it lets in; 0: any number.
	Uses int `json:"uses"`
	// LifeNS is how long it is valid; 0: an hour.
	LifeNS time.Duration `json:"life_ns"`
}

// MaxTokenLife bounds LifeNS.
const MaxTokenLife = 7 * 24 * time.Hour

// Validate reports all that is wrong with the request.
func (t *NewToken) Validate() error {
	var errs []error
	if t.Uses < 0 || t.Uses > 1<<20 {
		errs = append(errs, fmt.Errorf("a token lets in 1 to %d hosts, or 0 for any number, not %d", 1<<20, t.Uses))
	}
	if t.LifeNS != 0 && (t.LifeNS < time.Second || t.LifeNS > MaxTokenLife) {
		errs = append(errs, fmt.Errorf("a token is valid for 1s to %v, not %v", MaxTokenLife, t.LifeNS))
	}
	return errors.Join(errs...)
}

// Token is a token by which hosts join.
type Token struct {
	ID    string    `json:"id" order:"2"` // no secret
	Roles []string  `json:"roles" order:"given: in that of weft token --roles"`
	Uses  int       `json:"uses"` // 0: any number
	Used  int       `json:"used"`
	Ends  time.Time `json:"ends" order:"1"`
	By    string    `json:"by"`
	// Line is the command for the next host. It has the secret, and is in the answer of CreateToken alone.
	Line string `json:"line,omitempty"`
	// Founded is the fabric that was made for this token, empty where there was one.
	Founded string `json:"founded,omitempty"`
}

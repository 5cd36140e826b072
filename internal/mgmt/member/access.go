// SPDX-License-Identifier: Apache-2.0

package member

import (
	"fmt"
	"slices"
	"strings"

	"weft/internal/proto/ib"
	"weft/internal/proto/problem"
)

// Keys of the store below a fabric's namespace. A member's keys end with its GUID in 16 hexadecimal digits.
const (
	KeyFabric = "fabric/identity" // Fabric
	// KeyChange changes with every change of members, CAs or tokens: it orders them.
	KeyChange = "fabric/change"
	// TreeFabric has the keys above. Every member follows all of it.
	TreeFabric = "fabric"
	TreeSealed = "member/sealed"  // EPOCH/GUID: Sealed, what only the voter opens
	TreeToken  = "member/token"   // ID: Token
	TreeRecord = "member/record"  // GUID: Record
	TreeName   = "member/name"    // NAME: GUID, so that a name is unique in one transaction
	TreeGone   = "member/removed" // hexadecimal Key: Gone
	TreeReport = "member/report"  // GUID: Report, written by the member itself

	TreeNode = "node" // GUID/…: what the member keeps of its devices
	// What members write for the replication of the store, below their GUIDs.
	TreeStoreMember  = "store/member"
	TreeStorePresent = "store/present"
	// KeyStoreRoster has the replicas of the store (etcd.Roster), as their leader writes it.
	KeyStoreRoster = "store/roster/group"

	treeMKeys   = "subnet/m_key"
	treeHistory = "history"
)

// GUIDKey is a GUID as the last part of a key.
func GUIDKey(g ib.GUID) string { return fmt.Sprintf("%016x", uint64(g)) }

// rule grants access to a key or a tree.
type rule struct {
	tree string
	read Role // any of these reads; 0: every member
	// write: any of these roles writes
	write Role
	// own is the most octets of the one key below the tree that a member of any role writes, its GUID and then below;
	// 0: there is none. The keys are fixed and their sizes bounded, so that no member can fill the store.
	own   int
	below string
}

// Bounds of what a member writes of its own, in octets.
const (
	maxFunctions = 256 << 10 // a switch has 254 ports at most
	maxPresence  = 4 << 10
)

// rules are in order: the first with a tree that is or contains the key counts. A key without a rule is refused.
// Voters hold the store, and so read all of it; what must not be read by them is sealed.
var rules = []rule{
	{tree: treeMKeys, read: Voter | Manager, write: Manager},
	{tree: TreeToken, read: Voter | Administrator, write: Voter | Administrator},
	{tree: TreeSealed, read: Voter, write: Voter},
	{tree: KeyFabric, write: Voter},
	{tree: KeyChange, write: Voter | Administrator},
	{tree: TreeFabric, write: Voter},
	{tree: TreeReport, own: MaxRecord, write: Voter},
	{tree: TreeRecord, write: Voter},
	{tree: TreeName, write: Voter},
	{tree: TreeGone, write: Voter},
	{tree: "subnet", write: Manager},
	{tree: "election", write: Manager},
	{tree: TreeStoreMember, own: maxPresence, write: Voter},
	{tree: TreeStorePresent, own: maxPresence, write: Voter},
	{tree: "store", write: Voter},
	{tree: TreeNode, own: maxFunctions, below: "/functions", write: Voter}, // which remove them with their member
	{tree: treeHistory, read: Voter | Manager | Administrator, write: Manager},
}

// isOwn reports whether a key is the one that a member of any role writes.
func (r *rule) isOwn(c Claims, key string) bool {
	return r.own > 0 && key == r.tree+"/"+GUIDKey(c.GUID)+r.below
}

// OwnLimit is how many octets a member may write to a key that it writes as its own; 0: the key is none of those.
func OwnLimit(c Claims, key string) int {
	for i := range rules {
		if rules[i].isOwn(c, key) {
			return rules[i].own
		}
	}
	return 0
}

// MayAccess decides whether a member may read or write the keys of the store from key to end. end empty is the one
// key; else it is the first key behind the range, as etcd has it. A range is allowed where one rule holds all of it.
func MayAccess(c Claims, key, end string, write bool) *problem.Error {
	verb := "read"
	if write {
		verb = "write"
	}
	refuse := func(why string) *problem.Error {
		return problem.New(fmt.Sprintf("cannot %s %s", verb, printable(key)), why,
			"use a member with that role: weft member list")
	}
	i := slices.IndexFunc(rules, func(r rule) bool { return within(r.tree, key, end) })
	if i < 0 {
		return refuse("no member may use those keys")
	}
	for n, r := range rules[:i+1] {
		if n < i && (end == "" || !overlaps(r.tree, key, end)) {
			continue
		}
		if write && end == "" && r.isOwn(c, key) {
			continue
		}
		need := r.read
		if write {
			need = r.write
		}
		switch {
		case !write && need == 0, c.Roles&need != 0:
		case need == 0:
			return refuse(c.Name + " writes its own keys only")
		default:
			return refuse(fmt.Sprintf("%s has the roles %v, and %s needs one of %v", c.Name, c.Roles, r.tree, need))
		}
	}
	return nil
}

// within reports whether all keys from key to end are the tree or below it.
func within(tree, key, end string) bool {
	if key != tree && !strings.HasPrefix(key, tree+"/") {
		return false
	}
	// The first key behind the tree is the tree with the octet after the slash.
	return end == "" || end <= tree+"0" && end > key
}

// overlaps reports whether a key from key to end is the tree or below it.
func overlaps(tree, key, end string) bool { return key < tree+"0" && end > tree }

// MayForward decides which requests of its users a member may forward to the master: a change needs the role
// administrator, and a read what the store requires of a reader of the tree; empty: one that every member reads. It
// decides the same for the users of the master's own node.
func MayForward(c Claims, change bool, tree string) *problem.Error {
	if change && !c.Roles.Has(Administrator) {
		return problem.New("cannot change the fabric", fmt.Sprintf("the member %s has the roles %v, and not "+
			"administrator", c.Name, c.Roles), "run the command on a member with that role: weft member list")
	}
	if tree == "" {
		return nil
	}
	return MayAccess(c, tree, "", false)
}

// SPDX-License-Identifier: Apache-2.0

package voters

// Identity names a group. A restore from a backup or a copy makes a new group: of another cluster, of the next
// generation. The group of the highest generation is the store of the fabric.
type Identity struct {
	Cluster    uint64 `json:"cluster"`    // chosen at random when the group is made
	Generation uint64 `json:"generation"` // 1 and more; 0: not known
}

// Answer is what another member that has a replica reports.
type Answer struct {
	From  string // the member
	Group Identity
	// Removed: the replica that the question names was in the group, and its removal is committed. A replica that the
	// member does not list yet is not removed: a learner that has just begun has none.
	Removed bool
}

// Verdict is what a node does with the files of a replica.
type Verdict uint8

// Verdicts.
const (
	Start    Verdict = iota // use the files: the group decides by its majority
	SetAside                // do not use them: the member is a client
	Conflict                // two groups of one generation: a person decides
)

func (v Verdict) String() string { return [...]string{"start", "set aside", "conflict"}[v] }

// Resume decides whether a node may use the files of its replica of a group, given the answers of the members that it
// reached. It is called before the files are used and at intervals while they are. Without an answer the files are
// used: after a power failure of all hosts there is no other source, and a group without its majority changes nothing.
// What a removed replica has then cannot become a second group, because the removal is in the log of a majority; the
// one exception is a restored group, and that has another generation. Where the node does not know the group of its
// files they are used as well: the replica has its group in it, and the caller decides again by that at once. A
// generation of 0 is unknown: the number of the group alone decides.
func Resume(own Identity, answers []Answer) (Verdict, string) {
	verdict, why := Start, ""
	for _, a := range answers {
		switch {
		case own.Generation == 0 && (own.Cluster == 0 || a.Group.Cluster != own.Cluster):
		case own.Generation == 0 && a.Removed:
			verdict, why = SetAside, a.From+" reports that this replica was removed"
		case own.Generation == 0:
		case a.Group.Generation > own.Generation:
			return SetAside, a.From + " has a store of a later generation"
		case a.Group.Generation < own.Generation:
			// It is out of date and finds that out by the same rule.
		case a.Group.Cluster != own.Cluster:
			verdict, why = Conflict, a.From+" has another store of the same generation"
		case a.Removed && verdict != Conflict:
			verdict, why = SetAside, a.From+" reports that this replica was removed"
		}
	}
	return verdict, why
}

// Choose decides whether a member without a replica may use the store of the highest generation among its own, which is
// the one that it last used, and those of the members that it reached: Start, or Conflict where there are two.
func Choose(own Identity, answers []Answer) (Verdict, string) {
	best, verdict, why := own, Start, ""
	for _, a := range answers {
		switch {
		case a.Group.Generation > best.Generation:
			best, verdict, why = a.Group, Start, ""
		case a.Group.Generation == 0, a.Group.Generation < best.Generation, a.Group.Cluster == best.Cluster:
		default:
			verdict, why = Conflict, a.From+" has another store of the same generation"
		}
	}
	return verdict, why
}

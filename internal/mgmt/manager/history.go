// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"weft/internal/mgmt/store"
)

// Keys of the store: KeyHistory has a ring of HistorySize entries, of which KeyHistoryLast has the number of the last.
const (
	KeyHistory     = "history"
	KeyHistoryLast = KeyHistory + "/last"
)

// Bounds of the history.
const (
	HistorySize    = 1000 // changes that are kept
	maxHistoryText = 400  // octets of a text of a change
)

// Author is the user of a change.
type Author struct {
	// Member is the name of the member with the node that received the command, empty where the node is in no fabric.
	Member string `json:"member,omitempty"`
	UID    int    `json:"uid"`
	User   string `json:"user,omitempty"` // its name on the host of that node, empty where it has none
}

// Change is a change of what operators configured.
type Change struct {
	Number uint64    `json:"number"` // from 1, one more for each change; set by the store's transaction
	At     time.Time `json:"at"`
	Author
	Op   string `json:"op"`   // the command, as in "pkey add"
	Text string `json:"text"` // what changed, in one line
}

// historyKey is the key of a change in the ring.
func historyKey(number uint64) string { return fmt.Sprintf("%s/%03d", KeyHistory, number%HistorySize) }

// last is the value of KeyHistoryLast.
type last struct {
	Number uint64 `json:"number"`
}

// commit executes a transaction together with its entry of the history, which takes the place of the oldest one: both
// are there, or none is. ErrConflict means that a condition is false or another change was faster.
func commit(ctx context.Context, s store.Store, t store.Txn, c Change) error {
	e, err := s.Get(ctx, KeyHistoryLast)
	if err != nil && !isNotFound(err) {
		return err
	}
	var n last
	if err == nil && json.Unmarshal(e.Value, &n) != nil {
		// A damaged number costs the order of no other change: the ring has it as well.
		list, err := History(ctx, s, time.Time{})
		if err != nil {
			return err
		}
		for _, x := range list {
			n.Number = max(n.Number, x.Number)
		}
	}
	c.Number = n.Number + 1
	c.Text, c.Op, c.User = oneLine(c.Text, maxHistoryText), oneLine(c.Op, 64), oneLine(c.User, 64)
	entry, err := json.Marshal(c)
	if err != nil {
		return err
	}
	number, err := json.Marshal(last{c.Number})
	if err != nil {
		return err
	}
	t.If = append(slices.Clone(t.If), unchanged(KeyHistoryLast, e))
	t.Do = append(slices.Clone(t.Do), store.PutOp(KeyHistoryLast, number), store.PutOp(historyKey(c.Number), entry))
	_, err = s.Txn(ctx, t)
	return err
}

// oneLine cuts a text to a number of octets, in one line.
func oneLine(s string, most int) string {
	s = strings.Join(strings.Fields(strings.ToValidUTF8(s, "?")), " ")
	if len(s) <= most {
		return s
	}
	s = s[:most-len("…")]
	for !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s + "…"
}

// History returns the changes since a time that are kept, the oldest first. An entry that cannot be read is a change
// without a number that names its key. It may be called on any goroutine.
func History(ctx context.Context, s store.Store, since time.Time) (list []Change, err error) {
	l, err := s.List(ctx, KeyHistory)
	if err != nil {
		return nil, err
	}
	for _, e := range l.Entries {
		if e.Key == KeyHistoryLast {
			continue
		}
		var c Change
		if err := json.Unmarshal(e.Value, &c); err != nil || c.Number == 0 {
			list = append(list, Change{Text: "the entry " + e.Key + " of the store is damaged"})
		} else if !c.At.Before(since) {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b Change) int { return cmp.Compare(a.Number, b.Number) })
	return list, nil
}

// editEntry changes one entry of the store with its entry of the history. change gets the value, nil where there is
// none.
func editEntry(ctx context.Context, s store.Store, key string, c Change,
	change func(value []byte) ([]byte, error)) error {
	for {
		e, err := s.Get(ctx, key)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		value, err := change(e.Value)
		if err != nil {
			return err
		}
		if e.Rev != 0 && bytes.Equal(value, e.Value) {
			return nil
		}
		t := store.Txn{If: []store.Cond{unchanged(key, e)}, Do: []store.Op{store.PutOp(key, value)}}
		if err := commit(ctx, s, t, c); !isConflict(err) {
			return err
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package contact

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"

	"weft/internal/proto/ib"
)

// Bounds of what Losses list.
const (
	MaxLosses = 64 // losses
	MaxWith   = 16 // ports of a loss
)

// Loss is a port that loses contact by a partition, an Ethernet or a group: what uses that ends, also where the ports
// reach each other by another. A pair of ports is in one Loss only of each.
type Loss struct {
	Port ib.GUID
	With []ib.GUID // the first MaxWith that it does not reach there any more; empty where By alone is lost
	More int       // ports behind With
	By   string    // "partition red", "vesw lab", "group ff12::1"
}

// Losses are what a change takes away. The zero value is nothing. Its methods are called by one goroutine at a time.
type Losses struct {
	List []Loss // the first MaxLosses, those of one partition or Ethernet together, the largest of it first
	More int    // losses behind List
	// Pairs is the number of pairs of ports that lose contact, counted once for each partition or Ethernet that they
	// lose it by.
	Pairs int
	sum   hash.Hash
}

// Count is the number of losses.
func (s *Losses) Count() int { return len(s.List) + s.More }

// Digest identifies all that is lost, also what is not listed.
func (s *Losses) Digest() string {
	if s.sum == nil {
		return ""
	}
	return hex.EncodeToString(s.sum.Sum(nil)[:16])
}

// Add adds a loss with all of its ports.
func (s *Losses) Add(l Loss) {
	s.Pairs += len(l.With) + l.More
	fmt.Fprintln(s.hash(), l)
	s.list(l)
}

func (s *Losses) list(l Loss) {
	if len(s.List) == MaxLosses {
		s.More++
		return
	}
	s.List = append(s.List, l)
}

func (s *Losses) hash() hash.Hash {
	if s.sum == nil {
		s.sum = sha256.New()
	}
	return s.sum
}

// related adds the losses of a relation, by as few ports as a greedy choice finds: a port that loses all others is one
// Loss.
func (s *Losses) related(r *relation) {
	list, pairs := r.list()
	if pairs == 0 {
		return
	}
	s.Pairs += pairs
	fmt.Fprintf(s.hash(), "%q", r.by)
	for _, c := range list {
		b := []byte{byte(c.before), byte(c.after)}
		b = binary.BigEndian.AppendUint64(b, uint64(len(c.left)))
		for _, p := range c.left {
			b = binary.BigEndian.AppendUint64(b, uint64(p))
		}
		s.sum.Write(b)
	}
	for {
		port, parts := next(list)
		if parts == nil {
			return
		}
		l := Loss{Port: port, By: r.by}
		if len(s.List) < MaxLosses {
			l.With, l.More = merge(parts, MaxWith)
		}
		s.list(l)
	}
}

// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"os"
	"slices"
	"time"

	"weft/internal/proto/mono"
)

// readCAs reads the CAs by which replicas verify each other, empty where there are none. Where they cannot be read,
// they are those of before.
func (s *Security) readCAs(before string, log *slog.Logger) string {
	if s == nil {
		return ""
	}
	b, err := os.ReadFile(s.Files.CA)
	if err != nil {
		log.Warn("the CAs of replicas cannot be read", "err", err)
		return before
	}
	return string(b)
}

// digest is a short text for CAs, which reports have.
func digest(cas string) string {
	sum := sha256.Sum256([]byte(cas))
	return hex.EncodeToString(sum[:8])
}

// outdated reports whether the replica has to be started again to verify others by the CAs that there are now. While
// members have certificates of a CA that was replaced, it keeps the connections that it has; without a leader there is
// nothing to keep. mu is held.
func (m *Member) outdated(now mono.Time) bool {
	if m.c.Security == nil || m.c.Security.readCAs(m.cas, m.c.Log) == m.cas {
		m.renewal = renewal{}
		return false
	}
	names, _ := m.c.Security.counted(m.server)
	if m.c.Security.Settled != nil && !m.c.Security.Settled(names) && m.server.etcd.leader() != 0 {
		m.renewal = renewal{}
		return false
	}
	if m.renewal.since == 0 {
		m.renewal = renewal{since: now, answered: map[uint64]bool{}}
	}
	return true
}

// renewal is a start of the replica for other CAs that is due.
type renewal struct {
	since    mono.Time       // 0: none is due
	answered map[uint64]bool // other replicas that reported since then
}

// A replica waits so long for one that does not report, and for one that did, which may be starting again.
const (
	deadPatience  = 5 * time.Second
	orderPatience = 15 * time.Second
)

// preceded reports whether the replica waits with its start for another voter; mu is held.
func (m *Member) preceded(ctx context.Context, now mono.Time) bool {
	v := order{own: m.server.ID(), leader: m.server.etcd.leader(),
		cas: digest(m.c.Security.readCAs(m.cas, m.c.Log)), due: now.Sub(m.renewal.since)}
	names, removed := m.c.Security.counted(m.server)
	v.removed = removed
	for _, r := range m.server.Replicas() {
		if r.ID == v.own || r.Learner || !slices.Contains(names, r.Name) {
			continue
		}
		o := other{id: r.ID, answered: m.renewal.answered[r.ID]}
		if a, err := m.ask(ctx, host(r.URL), 0); err == nil {
			o.report = &a
			m.renewal.answered[r.ID] = true
		}
		v.others = append(v.others, o)
	}
	return v.wait()
}

// order is what decides about the start of a replica for other CAs.
type order struct {
	own, leader uint64 // numbers of replicas; leader 0: there is none
	cas         string // digest of the CAs that there are now
	removed     bool   // the leader is a replica of a member that was removed
	due         time.Duration
	others      []other // voters
}

// other is another voter.
type other struct {
	id       uint64
	report   *Report // nil: it does not answer
	answered bool    // it did since the start is due
}

// wait reports whether the replica waits, so that the group keeps its majority: no two voters are away at a time, the
// followers come in the order of their numbers, then the leader.
func (v *order) wait() bool {
	return slices.ContainsFunc(v.others, func(o other) bool {
		if o.report == nil {
			return v.due < deadPatience || o.answered && v.due < orderPatience
		}
		first := v.own == v.leader || o.id != v.leader && o.id < v.own
		return (o.report.Leader != v.leader && !v.removed || o.report.CAs != v.cas && first) && v.due < orderPatience
	})
}

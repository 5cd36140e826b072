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
	if m.c.Security.Settled != nil && !m.c.Security.Settled(names) && uint64(m.server.etcd.Leader()) != 0 {
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

// preceded reports whether the replica waits with its start for another voter, so that the group keeps its majority: no
// two of them are away at a time, the followers come in the order of their numbers, then the leader. mu is held.
func (m *Member) preceded(ctx context.Context, now mono.Time) (wait bool) {
	due := now.Sub(m.renewal.since)
	own, leader, cas := m.server.ID(), uint64(m.server.etcd.Leader()), digest(m.c.Security.readCAs(m.cas, m.c.Log))
	names, removed := m.c.Security.counted(m.server)
	for _, r := range m.server.Replicas() {
		if r.ID == own || r.Learner || !slices.Contains(names, r.Name) {
			continue
		}
		a, err := m.ask(ctx, host(r.URL), 0)
		if err != nil {
			wait = wait || due < deadPatience || m.renewal.answered[r.ID] && due < orderPatience
			continue
		}
		m.renewal.answered[r.ID] = true
		first := own == leader || r.ID != leader && r.ID < own
		if (a.Leader != leader && !removed || a.CAs != cas && first) && due < orderPatience {
			wait = true
		}
	}
	return wait
}

// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"crypto/x509"
	"sync"
	"time"

	"weft/internal/mgmt/member"
)

// Bounds of Recent.
const (
	recentFor  = time.Second
	recentMost = 1024
)

// Recent remembers which certificates a roster admitted within the last second: what serves many requests of few
// connections verifies the same signatures again and again. Another roster is decided by anew at once; a certificate
// that ends may count for a second more. The zero value is ready. Its methods may be called on any goroutine.
type Recent struct {
	mu     sync.Mutex
	roster *member.Roster
	list   map[*x509.Certificate]recent
}

type recent struct {
	claims member.Claims
	at     time.Time
}

// find returns what a certificate proved by a roster shortly before now. A nil Recent remembers nothing.
func (m *Recent) find(r *member.Roster, c *x509.Certificate, now time.Time) (x member.Claims, ok bool) {
	if m == nil {
		return x, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.list[c]
	if age := now.Sub(e.at); !ok || m.roster != r || age < 0 || age >= recentFor {
		return x, false
	}
	return e.claims, true
}

// keep remembers what a certificate proves by a roster.
func (m *Recent) keep(r *member.Roster, c *x509.Certificate, x member.Claims, now time.Time) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.roster != r || len(m.list) >= recentMost {
		m.roster, m.list = r, map[*x509.Certificate]recent{}
	}
	m.list[c] = recent{x, now}
}

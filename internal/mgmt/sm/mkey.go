// SPDX-License-Identifier: Apache-2.0

package sm

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"time"

	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// M_Keys (IBA volume 1, 14.2.4). Every request bears the key of its port. A port reports its key to requesters that
// have it, and to all requesters after its lease has ended; if it does not report one, requests bear the key of the
// intent. A protected port that does not report its key has an unknown one.

// MKey tells the M_Key of each port. The zero value is none for all of them.
type MKey struct {
	// All is the M_Key of every port. If it is 0, each port has its own, derived from Secret and its GUID: a host
	// that reads the M_Key of one port does not know the M_Key of another.
	All uint64
	// Secret is not all zeros if ports have M_Keys of their own.
	Secret [32]byte
}

// IsNone reports whether no port has an M_Key.
func (k MKey) IsNone() bool { return k == MKey{} }

// Of returns the M_Key of the port with a GUID, 0 if it has none.
func (k MKey) Of(port ib.GUID) uint64 {
	if k.All != 0 || k.IsNone() {
		return k.All
	}
	for salt := byte(0); ; salt++ {
		h := hmac.New(sha256.New, k.Secret[:])
		h.Write(binary.BigEndian.AppendUint64([]byte{'M', 'K', 'e', 'y', salt}, uint64(port)))
		if key := binary.BigEndian.Uint64(h.Sum(nil)); key != 0 {
			return key
		}
	}
}

// ForAll returns the M_Key that all ports have instead of keys of their own. The keys of their own cannot be computed
// from it.
func (k MKey) ForAll() MKey {
	if k.All == 0 && !k.IsNone() {
		// No port has the GUID 0.
		return MKey{All: k.Of(0)}
	}
	return k
}

// knownKey returns the nth key that a port may have, that of the intent first.
func (i *Intent) knownKey(nth int) MKey {
	if nth == 0 {
		return i.MKey
	}
	return i.MKeysBefore[nth-1]
}

// nextForAll returns the number of the next key from nth on that is the same for every port. A request to a node that
// is not known yet can bear no other key. ok is false if there is no such key.
func (i *Intent) nextForAll(nth int) (next int, ok bool) {
	for ; nth <= len(i.MKeysBefore); nth++ {
		if i.knownKey(nth).All != 0 {
			return nth, true
		}
	}
	return 0, false
}

// isClosed reports whether a port is protected by a key that its answer does not contain. A port without a key that
// has protection bits looks the same, and accepts every key.
func isClosed(i *mad.PortInfo) bool { return i.MKey == 0 && i.MKeyProtectBits != 0 }

// keyFor returns the M_Key for requests to the node of r.
func (s *sweep) keyFor(r topo.Ref) uint64 {
	if s.t == nil || r.IsNone() {
		return s.base.intent.MKey.Of(s.base.cfg.PortGUID)
	}
	if n := &s.t.Nodes[r.Node]; n.IsSwitch() {
		r.Port = 0
	}
	p := s.t.Port(r)
	if p != nil && p.Info.MKey != 0 {
		return p.Info.MKey
	}
	if k, ok := s.keys[r.Node]; ok {
		return k
	}
	if p == nil {
		return s.base.intent.MKey.All
	}
	return s.base.intent.MKey.Of(p.GUID)
}

// tryKey requests the PortInfo of a closed port with the next key that it may have. It reports false if the port is
// not closed, or no key is left.
func (s *sweep) tryKey(r *request, i *mad.PortInfo) bool {
	if !isClosed(i) || r.nth >= len(s.base.intent.MKeysBefore) || r.method != mad.MethodGet {
		return false
	}
	q := s.request(mad.MethodGet, mad.AttrPortInfo, r.mod, r.path, r.ref, s.gotPortInfo)
	q.nth = r.nth + 1
	q.mkey = s.base.intent.knownKey(q.nth).Of(s.t.Port(r.ref).GUID)
	return true
}

// claim sets the key of the intent at ports that have another one, before all other Sets, which bear the new key.
// Closed ports get one request: their refusal starts the lease of their key, after which they report it.
func (s *sweep) claim() {
	for r := range s.t.EndPorts() {
		i := &s.t.Port(r).Info
		closed, key := isClosed(i), s.base.intent.MKey.Of(s.t.Port(r).GUID)
		if i.PortState == 0 || !closed && (i.MKey == 0 || i.MKey == key) {
			continue
		}
		w := *i
		w.MKey, w.MKeyProtectBits, w.MKeyLeasePeriod = key, s.base.intent.MKeyProtect, s.base.intent.MKeyLease
		w.ClientReregister = false
		q := s.setPort(r, w, ib.PortNoChange)
		q.done, q.stern = s.gotClaimed, closed
	}
}

func (s *sweep) gotClaimed(now mono.Time, r *request, a *mad.SMP) {
	switch {
	case a != nil:
		s.gotPortSet(now, r, a)
	case r.stern:
		s.guard(r.ref)
	default: // the port may have changed its key and the answer may be lost
		q := s.request(mad.MethodGet, mad.AttrPortInfo, r.mod, r.path, r.ref, s.gotClaim)
		q.mkey = s.base.intent.MKey.Of(s.t.Port(r.ref).GUID)
	}
}

func (s *sweep) gotClaim(_ mono.Time, r *request, a *mad.SMP) {
	if s.hasFailed(r, a) {
		return
	}
	i := &s.t.Port(r.ref).Info
	i.Parse(a.Data[:])
	if isClosed(i) {
		s.guard(r.ref)
	}
}

// guard records a node that refuses Sets because of its M_Key.
func (s *sweep) guard(r topo.Ref) {
	i := &s.t.Port(r).Info
	s.guarded[r.Node] = true
	s.failed++
	why := "it never lapses: restart the node, or"
	if i.MKeyLeasePeriod != 0 {
		why = "it lapses " + (time.Duration(i.MKeyLeasePeriod) * time.Second).String() +
			" after that manager is gone; or"
	}
	s.problem(s.nameOf(r), "the port is guarded by another M_Key, of another manager (protection %d). fix: %s "+
		"give this manager that key (weft sm set --m-key FILE)",
		i.MKeyProtectBits, why)
}

// barred reports whether a request is a Set that its node would refuse.
func (s *sweep) barred(r *request) bool {
	return r.method == mad.MethodSet && !r.ref.IsNone() && s.guarded[r.ref.Node]
}

// keyOf returns the M_Key of the port with a LID, 0 if it is unknown. It may be sent only to that port.
func (m *Manager) keyOf(lid ib.LID) uint64 {
	if m.topo == nil {
		return 0
	}
	if p := m.topo.Port(m.topo.PortByLID(lid)); p != nil {
		return p.Info.MKey
	}
	return 0
}

// scheduleKeyRenewal sets the time of the next requests with the M_Key of ports: a third of the lease, so that two
// of them may be dropped.
func (m *Manager) scheduleKeyRenewal(now mono.Time) {
	m.renewAt = 0
	if !m.intent.MKey.IsNone() && m.intent.MKeyLease != 0 {
		m.renewAt = now.Add(time.Duration(m.intent.MKeyLease) * time.Second / 3)
	}
}

// renewKeys sends adapters a request with their key, as a light sweep does to switches anyway: a host that provokes a
// port with wrong keys must not end the lease of the right one.
func (s *sweep) renewKeys() {
	for r := range s.t.EndPorts() {
		if p := s.t.Port(r); !s.t.Nodes[r.Node].IsSwitch() && p.Info.MKey != 0 {
			s.request(mad.MethodGet, mad.AttrPortInfo, uint32(r.Port), pathTo(s.t, r), r, s.gotRenewed).stern = true
		}
	}
}

// gotRenewed checks that a port still has its key. The switch of a silent port reports when its link goes down.
func (s *sweep) gotRenewed(_ mono.Time, r *request, a *mad.SMP) {
	if a == nil || a.Status != mad.StatusOK {
		return
	}
	var i mad.PortInfo
	i.Parse(a.Data[:])
	if i.MKey != s.base.topo.Port(r.ref).Info.MKey ||
		i.MKeyProtectBits != s.base.topo.Port(r.ref).Info.MKeyProtectBits {
		s.changes, s.why = true, "the M_Key of a port changed"
	}
}

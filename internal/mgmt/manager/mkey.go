// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"

	"weft/internal/mgmt/sm"
	"weft/internal/mgmt/store"
)

// KeyMKey is where a store has the M_Key of the subnet. It is apart from the
// intent because it is a secret.
const KeyMKey = "subnet/m_key"

// MKey is the M_Key of the subnet as the store keeps it (IBA volume 1, 14.2.4): Key for all ports, or Secret, from
// which each port has its own.
type MKey struct {
	Version int    `json:"version"` // MKeyVersion
	Key     uint64 `json:",omitempty"`
	Secret  []byte `json:",omitempty"` // secretLen octets
	Off     bool   `json:",omitempty"` // there shall be none
	// Before are earlier keys and SecretsBefore earlier secrets, the latest first: a port that was away still has them.
	Before        []uint64 `json:",omitempty"`
	SecretsBefore [][]byte `json:",omitempty"`
}

// MKeyVersion is the newest version of MKey that this package reads. Version 1 has no secrets; a value without a secret
// is written as version 1, which earlier programs read.
const MKeyVersion = 2

// secretLen is the length of a secret.
const secretLen = len(sm.MKey{}.Secret)

// keysBefore is how many earlier keys, and earlier secrets, are remembered.
const keysBefore = 8

// Default protection of ports: a manager without the key can read, and the key is not returned; and
// how long a manager may be absent.
const (
	defaultProtect = 1
	defaultLease   = 60 // seconds
	// MinLease leaves time for a light sweep and its repetitions.
	MinLease = 15
)

// Set makes k the key of all ports from now on; 0 is none.
func (m *MKey) Set(k uint64) {
	m.retire()
	m.Before = slices.DeleteFunc(m.Before, func(old uint64) bool { return old == k })
	m.Key, m.Off = k, k == 0
}

// Renew draws a secret: each port has another M_Key from now on, its own.
func (m *MKey) Renew() {
	m.retire()
	m.Secret, m.Off = make([]byte, secretLen), false
	rand.Read(m.Secret) // never fails
}

// retire makes the key or secret in force an earlier one.
func (m *MKey) retire() {
	if m.Key != 0 && !slices.Contains(m.Before, m.Key) {
		m.Before = append([]uint64{m.Key}, m.Before...)
		m.Before = m.Before[:min(len(m.Before), keysBefore)]
	}
	if m.Secret != nil {
		m.SecretsBefore = append([][]byte{m.Secret}, m.SecretsBefore...)
		m.SecretsBefore = m.SecretsBefore[:min(len(m.SecretsBefore), keysBefore)]
	}
	m.Key, m.Secret = 0, nil
}

// IsNone reports whether there is neither a key nor a secret.
func (m *MKey) IsNone() bool { return m.Key == 0 && m.Secret == nil }

// keys returns the keys that ports may have by m, the one in force first; its zero value means that no port has a key.
// With protection 2 or 3 a port answers no request without its key. A manager that starts anew does not know yet which
// port is where, so it could not find ports with keys of their own: then a secret gives all ports one key. Each secret
// is in the list in both forms.
func (m *MKey) keys(protect uint8) (list []sm.MKey) {
	list = append(list, sm.MKey{All: m.Key})
	for i, b := range append([][]byte{m.Secret}, m.SecretsBefore...) {
		if len(b) != secretLen {
			continue
		}
		own := sm.MKey{Secret: [secretLen]byte(b)}
		forms := []sm.MKey{own, own.ForAll()}
		if protect > 1 {
			slices.Reverse(forms)
		}
		if i == 0 {
			list = list[:0]
		}
		list = append(list, forms...)
	}
	for _, k := range m.Before {
		list = append(list, sm.MKey{All: k})
	}
	return list
}

// RandomMKey draws a key.
func RandomMKey() uint64 {
	for {
		var b [8]byte
		rand.Read(b[:]) // never fails
		if k := binary.BigEndian.Uint64(b[:]); k != 0 {
			return k
		}
	}
}

func parseMKey(b []byte) (k MKey, err error) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&k); err != nil {
		return k, fmt.Errorf("read %s: it is no M_Key", KeyMKey) // what it is instead may be one
	}
	if k.Version < 1 || k.Version > MKeyVersion {
		return k, fmt.Errorf("read %s: version %d, this program knows 1 to %d", KeyMKey, k.Version, MKeyVersion)
	}
	for _, b := range append([][]byte{k.Secret}, k.SecretsBefore...) {
		if b != nil && len(b) != secretLen {
			return k, fmt.Errorf("read %s: a secret of %d octets, want %d", KeyMKey, len(b), secretLen)
		}
	}
	return k, nil
}

// encode writes m in the earliest version that can have it.
func (m MKey) encode() ([]byte, error) {
	if m.Version = 1; m.Secret != nil || m.SecretsBefore != nil {
		m.Version = MKeyVersion
	}
	return json.Marshal(m)
}

// EditMKey changes the M_Key in a store, in one transaction with the entry of the history: edit gets it as it is, and
// may be called several times. It may be called on any goroutine.
func EditMKey(ctx context.Context, s store.Store, c Change, edit func(*MKey)) error {
	return editEntry(ctx, s, KeyMKey, c, func(value []byte) ([]byte, error) {
		var k MKey
		if value != nil {
			var err error
			if k, err = parseMKey(value); err != nil {
				return nil, err
			}
		}
		edit(&k)
		return k.encode()
	})
}

// loadMKey reads the store's M_Key, and draws one first if the managers that
// share the store shall have one and do not yet.
func (m *Manager) loadMKey(ctx context.Context, term *store.Term) (MKey, store.Rev, error) {
	for {
		e, err := m.cfg.Store.Get(ctx, KeyMKey)
		switch {
		case err == nil:
			k, err := parseMKey(e.Value)
			if err != nil {
				// Older than any: ports that are guarded stay so.
				m.cfg.Log.Error("the M_Key in the store is wrong: the one before stands", "err", err)
				return MKey{}, 0, nil
			}
			return k, e.Rev, nil
		case !isNotFound(err):
			return MKey{}, 0, err
		case !m.cfg.Shared || m.cfg.MKey != 0:
			return MKey{}, 0, nil
		}
		var k MKey
		k.Renew()
		b, err := k.encode()
		if err != nil {
			return MKey{}, 0, err
		}
		_, err = term.Txn(ctx, store.Txn{If: []store.Cond{store.Absent(KeyMKey)},
			Do: []store.Op{store.PutOp(KeyMKey, b)}})
		if err != nil && !isConflict(err) {
			return MKey{}, 0, err
		}
	}
}

// Where the M_Key is from.
const (
	MKeyOfNode  = "node"  // given to this node
	MKeyOfStore = "store" // kept there
)

// wanted returns the intent for the core: with the key, and the default protection where it has none.
func (m *Manager) wanted() (i Intent, source string) {
	i = m.intent
	s := &i.Subnet
	s.Partitions = m.partitions()
	keys := m.key.keys(s.MKeyProtect)
	source = MKeyOfStore
	if own := (sm.MKey{All: m.cfg.MKey}); !own.IsNone() {
		keys = append([]sm.MKey{own}, slices.DeleteFunc(keys, func(k sm.MKey) bool { return k == own })...)
		source = MKeyOfNode
	}
	s.MKey = keys[0]
	s.MKeysBefore = slices.DeleteFunc(keys[1:], sm.MKey.IsNone)
	if s.MKey.IsNone() {
		return i, ""
	}
	if s.MKeyProtect == 0 {
		s.MKeyProtect = defaultProtect
	}
	if s.MKeyLease == 0 {
		s.MKeyLease = defaultLease
	}
	return i, source
}

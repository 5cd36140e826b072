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

	"weft/internal/mgmt/store"
)

// KeyMKey is where a store has the M_Key of the subnet. It is apart from the
// intent because it is a secret.
const KeyMKey = "subnet/m_key"

// MKey is the M_Key of the subnet as the store keeps it (IBA volume 1, 14.2.4).
type MKey struct {
	Version int    `json:"version"` // MKeyVersion
	Key     uint64 `json:",omitempty"`
	Off     bool   `json:",omitempty"` // there shall be none
	// Before are earlier keys, the latest first: ports that were away have them.
	Before []uint64 `json:",omitempty"`
}

// MKeyVersion is the version of MKey that this package writes.
const MKeyVersion = 1

// keysBefore is how many earlier keys are remembered.
const keysBefore = 8

// Default protection of ports: a manager without the key can read, and the key is not returned; and
// how long a manager may be absent.
const (
	defaultProtect = 1
	defaultLease   = 60 // seconds
	// MinLease leaves time for a light sweep and its repetitions.
	MinLease = 15
)

// Set makes k the key from now on; 0 is none.
func (m *MKey) Set(k uint64) {
	if m.Key != 0 && m.Key != k {
		m.Before = append([]uint64{m.Key}, m.Before...)
		m.Before = m.Before[:min(len(m.Before), keysBefore)]
	}
	m.Before = slices.DeleteFunc(m.Before, func(old uint64) bool { return old == k })
	m.Key, m.Off = k, k == 0
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
	if k.Version != MKeyVersion {
		return k, fmt.Errorf("read %s: version %d, this program knows %d", KeyMKey, k.Version, MKeyVersion)
	}
	return k, nil
}

// EditMKey changes the M_Key in a store, in one transaction with the entry of the history: edit gets it as it is, and
// may be called several times. It may be called on any goroutine.
func EditMKey(ctx context.Context, s store.Store, c Change, edit func(*MKey)) error {
	return editEntry(ctx, s, KeyMKey, c, func(value []byte) ([]byte, error) {
		k := MKey{Version: MKeyVersion}
		if value != nil {
			var err error
			if k, err = parseMKey(value); err != nil {
				return nil, err
			}
		}
		edit(&k)
		return json.Marshal(k)
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
		b, err := json.Marshal(MKey{Version: MKeyVersion, Key: RandomMKey()})
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
	s.MKey, source = m.key.Key, MKeyOfStore
	s.MKeysBefore = slices.Clone(m.key.Before)
	if own := m.cfg.MKey; own != 0 {
		if s.MKey != 0 && s.MKey != own {
			s.MKeysBefore = append([]uint64{s.MKey}, s.MKeysBefore...)
		}
		s.MKey, source = own, MKeyOfNode
	}
	if s.MKey == 0 {
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

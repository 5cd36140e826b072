// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"bytes"
	"context"
	"encoding/json"

	"weft/internal/mgmt/sm/em"
	"weft/internal/mgmt/store"
)

// Desired is all that operators configured of a fabric.
type Desired struct {
	Intent
	Ethernet em.Intent
}

// Load reads what operators configured. It may be called on any goroutine.
func Load(ctx context.Context, s store.Store) (d Desired, err error) {
	d, _, err = readDesired(ctx, s)
	return d, err
}

// readDesired returns the entries as well, KeyIntent and KeyVESWs in this order; the zero Entry where there is none.
func readDesired(ctx context.Context, s store.Store) (d Desired, entries [2]store.Entry, err error) {
	d = Desired{Intent: Intent{Version: IntentVersion}, Ethernet: em.Intent{FabricID: DefaultFabricID}}
	for i, key := range []string{KeyIntent, KeyVESWs} {
		e, err := s.Get(ctx, key)
		if isNotFound(err) {
			continue
		}
		if err != nil {
			return d, entries, err
		}
		entries[i] = e
		if i == 0 {
			d.Intent, err = parseIntent(e.Value)
		} else {
			var v VESWs
			v, err = parseVESWs(e.Value)
			d.Ethernet = v.Ethernet
		}
		if err != nil {
			return d, entries, err
		}
	}
	return d, entries, nil
}

// Validate returns what a manager would refuse, an *InvalidError.
func (d *Desired) Validate() error {
	if err := d.Subnet.Validate(); err != nil {
		return &InvalidError{err}
	}
	if err := d.Ethernet.Validate(); err != nil {
		return &InvalidError{err}
	}
	return nil
}

// Edit changes what operators configured, in one transaction with the entry of the history. edit gets the
// configuration as it is and the entry to complete, and may be called several times; its error ends the edit and is
// returned. An edit that changes nothing writes nothing. It may be called on any goroutine.
func Edit(ctx context.Context, s store.Store, c Change, edit func(*Desired, *Change) error) error {
	for {
		d, entries, err := readDesired(ctx, s)
		if err != nil {
			return err
		}
		now := c
		if err := edit(&d, &now); err != nil {
			return err
		}
		if err := d.Validate(); err != nil {
			return err
		}
		intent, err := json.Marshal(d.Intent)
		if err != nil {
			return err
		}
		vesws, err := json.Marshal(VESWs{Version: VESWsVersion, Ethernet: d.Ethernet})
		if err != nil {
			return err
		}
		// Both are conditions, also where one is written: they are validated against each other.
		var t store.Txn
		for i, x := range []struct {
			key   string
			value []byte
		}{{KeyIntent, intent}, {KeyVESWs, vesws}} {
			t.If = append(t.If, unchanged(x.key, entries[i]))
			if !bytes.Equal(x.value, entries[i].Value) && (entries[i].Rev != 0 || !isDefault(i, &d)) {
				t.Do = append(t.Do, store.PutOp(x.key, x.value))
			}
		}
		if len(t.Do) == 0 {
			return nil
		}
		if err := commit(ctx, s, t, now); !isConflict(err) {
			return err
		}
	}
}

// isDefault reports whether a part of the configuration, by the number of its entry, is what an absent entry means.
func isDefault(part int, d *Desired) bool {
	if part == 0 {
		b, err := json.Marshal(d.Intent)
		empty, _ := json.Marshal(Intent{Version: IntentVersion})
		return err == nil && bytes.Equal(b, empty)
	}
	b, err := json.Marshal(d.Ethernet)
	empty, _ := json.Marshal(em.Intent{FabricID: DefaultFabricID})
	return err == nil && bytes.Equal(b, empty)
}

// unchanged is true while an entry is as it was read.
func unchanged(key string, e store.Entry) store.Cond {
	if e.Rev == 0 {
		return store.Absent(key)
	}
	return store.At(e)
}

// Clone returns a copy that shares nothing with d.
func (d *Desired) Clone() (c Desired) {
	b, err := json.Marshal(d)
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil {
		panic("manager: a configuration has no copy: " + err.Error())
	}
	return c
}

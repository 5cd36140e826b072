// SPDX-License-Identifier: Apache-2.0

package etcd

import "weft/internal/mgmt/store"

// conflict is the error of a node that met another store of the generation of its own.
func conflict(why string) error {
	return &store.Error{Kind: store.ErrUnavailable, What: "cannot use the store", Why: why,
		Fix: "decide which is the fabric's; on the hosts with the other: weft leave; weft join"}
}

// separate ends the use of the store since there are two, and with it the terms that callers have; mu is held.
func (m *Member) separate(why string) {
	err := conflict(why)
	if m.why != why {
		m.c.Log.Error("there are two stores", "err", err)
	}
	m.why, m.split, m.lead, m.remote = why, true, nil, nil
	m.because(err)
	m.use(nil)
}

// reunite undoes separate; mu is held.
func (m *Member) reunite() {
	if m.split {
		m.why, m.split = "", false
		m.because(nil)
		m.c.Log.Info("there is one store again")
	}
}

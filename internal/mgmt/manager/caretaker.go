// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"weft/internal/mgmt/sm"
	"weft/internal/mgmt/sm/em"
	"weft/internal/mgmt/sm/sa"
	"weft/internal/mgmt/store"
)

// lookEvery is how often a manager with a copy of the store looks whether the store has lost its majority.
const lookEvery = 500 * time.Millisecond

// watchMajority makes the manager a caretaker while the store has no majority: no node can be elected then, and without
// a manager path queries go unanswered and ports that come up have no partitions. A caretaker writes nothing.
func (m *Manager) watchMajority(ctx context.Context) {
	caring := false
	said := ""
	for ctx.Err() == nil {
		if alone := m.cfg.Copy.Alone(); alone && !caring {
			in, err := m.inherit(ctx)
			if err == nil {
				m.cfg.Log.Warn("the store has no majority: the subnet is managed from this node's copy", "term",
					in.o.Token)
				m.cfg.Post(func() { m.care(in) })
				caring, said = true, ""
			} else if said != err.Error() {
				said = err.Error()
				m.cfg.Log.Error("the store has no majority, and this node's copy cannot replace it", "err", err)
			}
		} else if !alone && caring {
			m.cfg.Log.Info("the store has its majority again")
			m.cfg.Post(m.careNoMore)
			caring = false
		}
		pause(ctx, lookEvery)
	}
}

// inherited is what a store, or a copy of it, has of the last master, and of the intent.
type inherited struct {
	o       sm.Observations
	clients sa.State
	vesws   []em.Observed
	intent  Intent
	wanted  VESWs
	mkey    MKey
	// Revisions; 0 where the copy has no such key.
	intentRev, wantedRev, keyRev store.Rev
}

// inherit reads the copy. What cannot be read is an error: a caretaker must not open partitions that it cannot read.
func (m *Manager) inherit(ctx context.Context) (in inherited, err error) {
	l, err := m.cfg.Copy.Copy(ctx, "subnet")
	if err != nil {
		return in, err
	}
	in.intent, in.wanted = Intent{Version: IntentVersion}, VESWs{Version: VESWsVersion}
	managed := false
	for _, e := range l.Entries {
		switch {
		case e.Key == KeyObservations:
			managed = true
			err = json.Unmarshal(e.Value, &in.o)
		case e.Key == KeyClients:
			if json.Unmarshal(e.Value, &in.clients) != nil {
				in.clients = sa.State{} // clients register again
			}
		case e.Key == KeyIntent:
			in.intentRev = e.Rev
			in.intent, err = usableIntent(e.Value)
		case e.Key == KeyVESWs:
			in.wantedRev = e.Rev
			in.wanted, err = parseVESWs(e.Value)
		case e.Key == KeyMKey:
			in.keyRev = e.Rev
			in.mkey, err = parseMKey(e.Value)
		case strings.HasPrefix(e.Key, KeyVESWObserved+"/") && !strings.HasSuffix(e.Key, Damaged):
			var o em.Observed
			if json.Unmarshal(e.Value, &o) == nil && o.ID != 0 {
				in.vesws = append(in.vesws, o)
			}
		}
		if err != nil {
			return in, fmt.Errorf("read %s: %w", e.Key, err)
		}
	}
	if !managed {
		return in, errors.New("no manager has written to it: it may not be complete")
	}
	return in, nil
}

// care makes the manager a caretaker, on the management goroutine.
func (m *Manager) care(in inherited) {
	if m.elected { // the term is not over yet for all that this node can tell; its end follows
		m.elected = false
		m.endEthernet()
		m.sm.Revoke(m.cfg.Now())
	}
	m.caretaker = true
	m.resume(in)
	m.sm.Caretake(m.cfg.Now(), in.o.Token)
}

// resume continues with what the last master observed and with the intent, on the management goroutine. The intent is
// there before anything is changed, so that nothing intended is removed.
func (m *Manager) resume(in inherited) {
	now := m.cfg.Now()
	m.sm.Restore(in.o)
	m.sa.Restore(now, in.clients)
	m.setKey(in.mkey, in.keyRev)
	m.beginEthernet(in.vesws)
	m.net = nil // the SA has what belongs to the subnet that was
	if in.intentRev != 0 {
		m.setIntent(in.intent, in.intentRev)
	}
	m.setVESWs(in.wanted, in.wantedRev)
}

// careNoMore ends a caretaker: an election follows.
func (m *Manager) careNoMore() {
	if !m.caretaker {
		return
	}
	m.caretaker = false
	m.endEthernet()
	m.sm.Revoke(m.cfg.Now())
}

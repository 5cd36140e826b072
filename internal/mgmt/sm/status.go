// SPDX-License-Identifier: Apache-2.0

package sm

import (
	"fmt"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
)

// status is the part of the state of a manager that only Status reads.
type status struct {
	problems []Problem
	sweeps   []SweepRecord
	notes    []Note
	Traps    uint64
	BadMKeys uint64 // traps about SMPs with a wrong M_Key
	DropMKey uint64 // Sets of SMInfo without the M_Key
}

// Problem is a problem of the subnet that the last sweep found.
type Problem struct {
	Where string // a port or a node
	What  string
}

// SweepRecord is one sweep that ended.
type SweepRecord struct {
	Kind       string // "heavy", "light" or "groups"
	Why        string
	Started    mono.Time
	Took       time.Duration
	Nodes      int
	Switches   int
	Links      int
	Sent       uint64 // requests, repetitions apart
	Resent     uint64
	Unanswered uint64
	Failed     int // unanswered or refused requests, and other problems
}

// Note is a line of the manager's log.
type Note struct {
	At   mono.Time
	Text string
}

// kept is the number of sweeps and notes in Status.
const kept = 64

func keep[T any](list []T, v T) []T {
	if len(list) >= kept {
		list = append(list[:0], list[1:]...)
	}
	return append(list, v)
}

func (m *Manager) note(now mono.Time, format string, args ...any) {
	m.notes = keep(m.notes, Note{now, fmt.Sprintf(format, args...)})
}

func (m *Manager) logSweep(now mono.Time, s *sweep) {
	r := SweepRecord{Kind: kindNames[s.kind], Why: s.why, Started: s.started, Took: now.Sub(s.started), Links: s.links,
		Sent: m.requests.Sent - s.before.sent, Resent: m.requests.Resent - s.before.resent, Unanswered: m.requests.Unanswered - s.before.unanswered, Failed: s.failed}
	if s.t != nil {
		r.Nodes = len(s.t.Nodes)
		for i := range s.t.Nodes {
			if s.t.Nodes[i].IsSwitch() {
				r.Switches++
			}
		}
		if s.kind != heavy {
			r.Links = len(s.t.Links())
		}
	}
	m.sweeps = keep(m.sweeps, r)
	switch s.kind {
	case heavy:
		m.problems = s.problems
	case groups:
		m.problems = append(m.problems, s.problems...)
	}
}

// OtherManager is another manager that the last sweep found.
type OtherManager struct {
	GUID     ib.GUID
	LID      ib.LID
	Priority uint8
	State    string
}

// Status is the state of a manager as plain data.
type Status struct {
	State     string
	PortGUID  ib.GUID
	LID       ib.LID
	Priority  uint8
	Permitted bool
	Token     uint64 `json:",omitempty"`
	// Master is the master that a standby manager polls.
	Master ib.GUID `json:",omitempty"`
	// Engine is the configured engine, Routed the engine that routes the subnet: another one if Problems state that
	// those before it failed.
	Engine string
	Roots  []ib.GUID `json:",omitempty"`
	// Keyed means that an M_Key guards the ports, with MKeyProtect and for MKeyLease seconds after the last request
	// of the manager. KeyPerPort means that each port has its own.
	Keyed       bool
	KeyPerPort  bool           `json:",omitempty"`
	MKeyProtect uint8          `json:",omitempty"`
	MKeyLease   uint16         `json:",omitempty"`
	Routed      string         `json:",omitempty"`
	Sweeping    string         `json:",omitempty"` // reason of the sweep in progress
	Sweeps      []SweepRecord  // the latest last
	Problems    []Problem      `json:",omitempty"`
	Notes       []Note         `json:",omitempty"`
	Others      []OtherManager `json:",omitempty"`
	// Counters by name.
	Counters map[string]uint64
}

// Status describes the manager. The slices are the caller's.
func (m *Manager) Status() Status {
	q := &m.requests
	s := Status{State: stateName(m.state), PortGUID: m.cfg.PortGUID, LID: m.selfLID, Priority: m.cfg.Priority,
		Permitted: m.permitted,
		Token:     m.token, Engine: m.engine.Name(), Roots: append([]ib.GUID(nil), m.intent.Roots...),
		Keyed: !m.intent.MKey.IsNone(), KeyPerPort: m.intent.MKey.All == 0 && !m.intent.MKey.IsNone(),
		MKeyProtect: m.intent.MKeyProtect, MKeyLease: m.intent.MKeyLease,
		Sweeps:   append([]SweepRecord(nil), m.sweeps...),
		Problems: append([]Problem(nil), m.problems...), Notes: append([]Note(nil), m.notes...),
		Counters: map[string]uint64{"sent": q.Sent, "resent": q.Resent, "answered": q.Answered,
			"unanswered": q.Unanswered, "stray": q.Stray,
			"drops": q.Drops, "traps": m.Traps, "m_key_violations": m.BadMKeys, "drop_m_key": m.DropMKey}}
	if m.tables != nil {
		s.Routed = m.tables.Engine
	}
	if m.sweep != nil {
		s.Sweeping = m.sweep.why
	}
	if m.pollAt != 0 {
		s.Master = m.master.info.GUID
	}
	for _, o := range m.others {
		s.Others = append(s.Others, OtherManager{GUID: o.info.GUID, LID: o.lid, Priority: o.info.Priority,
			State: stateName(o.info.State)})
	}
	return s
}

// SPDX-License-Identifier: Apache-2.0

package sm

import (
	"weft/internal/mgmt/sm/route"
	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// kind is the purpose of a sweep.
type kind uint8

const (
	heavy  kind = iota // everything
	light              // detection of changes
	groups             // multicast tables only
)

var kindNames = [...]string{"heavy", "light", "groups"}

// phase is a step of a heavy sweep. Each begins when every request of the step before is answered or has failed.
type phase uint8

const (
	discovering phase = iota
	beyond            // discovery behind confined switches
	electing
	claiming   // ports with another M_Key
	clearing   // PortStateChange
	rechecking // ports that were down when PortStateChange was cleared late
	enforcing  // P_Key tables of switches
	partitioning
	numbering // LIDs and other settings of ports that are not in INIT
	laning
	routing
	replicating // multicast tables
	arming
	activating
	handing // over to a better manager
	finished
)

// sweep is a sweep in progress.
type sweep struct {
	base     *base
	requests *requests
	kind     kind
	phase    phase
	why      string
	started  mono.Time
	intent   uint64 // number of the intent that it began with
	t        *topo.Subnet
	tables   *route.Tables
	byGUID   map[ib.GUID]int32
	byPort   map[ib.GUID]topo.Ref
	claims   map[topo.Ref]claim // by port of a confined switch: the switch behind it
	ports    int
	times    []mono.Time // by node: the time of its last answer
	links    int
	others   []remote   // managers
	starting []remote   // managers that give no answer yet, or are not active
	mute     bool       // one of them gives no answer
	quiet    []topo.Ref // ports behind which no node answers
	late     map[int32]bool
	trusted  []*topo.Switch   // by node: tables that the switch still has
	unwrote  map[int32]bool   // nodes that did not accept all of their tables
	keys     map[int32]uint64 // M_Keys of nodes that answer to another key than that of the intent
	guarded  map[int32]bool   // nodes with an unknown M_Key
	again    string           // reason of another sweep right after this one
	groups   uint64           // number of the SetGroups that it writes the trees of
	failed   int              // unanswered requests, refused Sets and other problems
	before   requestsCount
	changes  bool // of a light sweep: a change was detected

	problems []Problem
}

type requestsCount struct{ sent, resent, unanswered uint64 }

// silentKey is a port behind which no node answers.
type silentKey struct {
	guid ib.GUID
	port uint8
}

func (s *sweep) heardOf(node int32, now mono.Time) {
	if node < 0 {
		return
	}
	if int(node) >= len(s.times) {
		s.times = append(s.times, make([]mono.Time, int(node)+1-len(s.times))...)
	}
	s.times[node] = now
}

func (s *sweep) heard(node int32) mono.Time {
	if node < 0 || int(node) >= len(s.times) {
		return 0
	}
	return s.times[node]
}

// portsPerNode bounds, with Config.MaxNodes, the number of ports.
const portsPerNode = 64

func (m *Manager) begin(now mono.Time, k kind, why string) *sweep {
	q := &m.requests
	m.sweep = &sweep{base: &m.base, requests: q, kind: k, why: why, started: now, before: requestsCount{q.Sent,
		q.Resent, q.Unanswered}}
	q.dead = q.dead[:0]
	m.actCount++
	return m.sweep
}

// startHeavy begins to discover the subnet anew.
func (m *Manager) startHeavy(now mono.Time, why string) {
	m.heavyAt, m.heavyWhy, m.started = 0, "", true
	s := m.begin(now, heavy, why)
	s.intent = m.intents
	n := 16
	if m.topo != nil {
		n = len(m.topo.Nodes)
	}
	s.t = &topo.Subnet{Prefix: m.intent.Prefix, Nodes: make([]topo.Node, 0, n+n/8)}
	s.byGUID = make(map[ib.GUID]int32, n)
	s.byPort = make(map[ib.GUID]topo.Ref, n)
	s.claims = map[topo.Ref]claim{}
	s.late = map[int32]bool{}
	s.keys, s.guarded = map[int32]uint64{}, map[int32]bool{}
	s.probe(nil, topo.None, 0)
}

// advance begins the next phase when the current one has ended.
func (m *Manager) advance(now mono.Time) {
	for m.sweep != nil && !m.requests.busy() {
		switch s := m.sweep; s.kind {
		case light:
			m.endLight(now)
		case groups:
			if s.phase == finished {
				m.endGroups(now)
				continue
			}
			s.phase = finished
		default:
			if s.phase == finished {
				m.endHeavy(now)
				continue
			}
			s.phase++
			m.enter(now, s)
		}
	}
}

// enter begins a phase of a heavy sweep.
func (m *Manager) enter(now mono.Time, s *sweep) {
	switch s.phase {
	case beyond:
		border{s}.lookBeyond()
	case electing:
		if len(s.t.Nodes) == 0 {
			m.endFailed(now, "the port of the manager does not answer, or only to another M_Key")
			return
		}
		m.elect(now)
	case claiming:
		s.claim()
	case clearing:
		s.clearChanges()
	case rechecking:
		s.recheck()
	case enforcing:
		border{s}.settleClaims()
		s.trustTables()
		border{s}.enforce()
	case partitioning:
		s.partition()
	case numbering:
		s.number()
	case laning:
		s.setLanes()
	case routing:
		s.routes()
	case replicating:
		s.replicate()
	case arming:
		m.groupsWritten = s.groups
		s.raisePorts(ib.PortInit, ib.PortArmed)
	case activating:
		s.raisePorts(ib.PortArmed, ib.PortActive)
	case handing:
		m.others, m.starting = s.others, s.starting
		m.handOver(now)
	}
}

// endHeavy publishes the results of a sweep.
func (m *Manager) endHeavy(now mono.Time) {
	s := m.sweep
	m.sweep, m.heavyWas, m.cut = nil, now, 0
	m.logSweep(now, s)
	s.t.Index()
	m.rememberLinks(now, s.t)
	m.topo, m.tables, m.quiet, m.unfinished, m.guarded = s.t, s.tables, s.quiet, s.failed > 0, s.guarded
	clear(m.trust)
	for i := range s.t.Nodes {
		n := &s.t.Nodes[i]
		if !n.IsSwitch() {
			continue
		}
		if n.Switch.Unwritten = s.unwrote[int32(i)]; !n.Switch.Unwritten {
			m.trust[n.Info.NodeGUID] = true
		}
	}
	m.swept = s.intent
	m.everSwept = true
	m.scheduleKeyRenewal(now)
	if m.backoff = min(max(2*m.backoff, m.cfg.Backoff), m.cfg.SweepInterval); s.failed == 0 && len(s.quiet) == 0 {
		m.backoff = 0
	}
	m.rest(now)
	if s.again != "" {
		m.sweepSoon(now, s.again)
	}
}

// rest sets the time of the next light sweep: sooner than usual if the last heavy one had failures, or a link
// changed shortly before.
func (m *Manager) rest(now mono.Time) {
	m.lightAt = now.Add(m.cfg.SweepInterval)
	if m.backoff > 0 {
		m.lightAt = now.Add(m.backoff)
	}
	if m.watch > 0 {
		m.lightAt = mono.Min(m.lightAt, now.Add(watchFirst<<(watches-m.watch)))
		m.watch--
	}
	m.lightAt = mono.Min(m.lightAt, m.renewAt)
}

// endFailed ends a sweep without results.
func (m *Manager) endFailed(now mono.Time, why string) {
	s := m.sweep
	s.problem("the manager", "%s", why)
	m.logSweep(now, s)
	m.sweep, m.cut = nil, 0
	m.heavyAt, m.heavyWhy = now.Add(m.cfg.Backoff), why
}

// startLight queries every switch for changes of its ports, the port of the manager, and the P_Key tables of all ports:
// another manager or program may have written one.
func (m *Manager) startLight(now mono.Time) {
	m.lightAt = 0
	if m.topo == nil {
		m.sweepSoon(now, "no sweep has ended yet")
		return
	}
	s := m.begin(now, light, "time")
	s.t = m.topo
	if m.unfinished {
		s.changes, s.why = true, "the last sweep had failures"
		return
	}
	for _, r := range m.quiet {
		path := pathTo(m.topo, r)
		s.request(mad.MethodGet, mad.AttrNodeInfo, 0, append(path[:len(path):len(path)], r.Port), r,
			s.gotLightProbe).probe = true
	}
	for _, i := range m.topo.Switches() {
		s.request(mad.MethodGet, mad.AttrSwitchInfo, 0, m.topo.Nodes[i].Path, topo.Ref{Node: i}, s.gotLight)
	}
	r := m.topo.Self
	s.request(mad.MethodGet, mad.AttrPortInfo, uint32(r.Port), pathTo(m.topo, r), r, s.gotLightPort)
	s.readKeys()
	m.queryOthers()
	if m.renewAt.Due(now.Add(m.cfg.Debounce)) {
		m.scheduleKeyRenewal(now)
		s.renewKeys()
	}
}

func (m *Manager) endLight(now mono.Time) {
	s := m.sweep
	m.sweep = nil
	m.logSweep(now, s)
	if m.backoff > 0 {
		m.backoff = min(2*m.backoff, m.cfg.SweepInterval)
	}
	m.rest(now)
	if s.changes {
		m.startHeavy(now, s.why)
	}
}

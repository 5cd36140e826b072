// SPDX-License-Identifier: Apache-2.0

package connected

import (
	"errors"
	"testing"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
	"weft/internal/service/ipoib/stats"
)

// The tests of this file are named for one transition each of a connection: from, to and event. Each fake implements
// one interface.

var (
	ownHW  = wire.MakeHWAddr(0, 0x48, ib.MakeGID(ib.DefaultGIDPrefix, 1))
	peerHW = wire.MakeHWAddr(0, 0x208, ib.MakeGID(ib.DefaultGIDPrefix, 2))
)

const peerLID = 17

// memory is a SharedQueue, a Mapper that maps nothing, a Budget without bound and a Reporter that reports nothing.
type memory struct{ posted int }

func (m *memory) OpenConns(_ ib.QPN, tx, rx, n int) ([]byte, []byte, error) {
	return make([]byte, tx*n), make([]byte, rx*n), nil
}
func (m *memory) CloseConns()                            {}
func (m *memory) PostConnRecv(slots []RecvSlot) int      { m.posted += len(slots); return len(slots) }
func (m *memory) Map([]byte) (ref uint64, ok bool)       { return 0, false }
func (m *memory) Unmap(uint64)                           {}
func (m *memory) Reserve(int) bool                       { return true }
func (m *memory) Release(int)                            {}
func (m *memory) Debugf(mono.Time, string, ...any)       {}
func (m *memory) Logf(mono.Time, string, string, ...any) {}

// manager is a Handshake that notes its calls.
type manager struct {
	calls []string
	err   error
}

func (m *manager) call(name string) (ib.QPN, error) {
	m.calls = append(m.calls, name)
	return 0x1000 + ib.QPN(len(m.calls)), m.err
}
func (m *manager) Connect(*Request) (ib.QPN, error)          { return m.call("connect") }
func (m *manager) ReadyConn(uint32) error                    { _, err := m.call("ready"); return err }
func (m *manager) AcceptConn(uint32, []byte) (ib.QPN, error) { return m.call("accept") }
func (m *manager) RejectConn(_ uint32, full bool, _ []byte) {
	m.call(map[bool]string{false: "reject", true: "reject full"}[full])
}
func (m *manager) EstablishConn(uint32) { m.call("establish") }

// pairs are QueuePairs that note their calls.
type pairs struct {
	posted             []uint64 // identifiers of messages
	stopped, destroyed int
}

func (q *pairs) PostConn(_ uint32, messages []Message) int {
	for _, m := range messages {
		q.posted = append(q.posted, m.ID)
	}
	return len(messages)
}
func (q *pairs) StopConn(uint32)    { q.stopped++ }
func (q *pairs) DestroyConn(uint32) { q.destroyed++ }

// rest is a Link: it counts the frames that go another way.
type rest struct{ resent, tooBig int }

func (r *rest) SendUnicast(mono.Time, wire.HWAddr, []byte) { r.resent++ }
func (r *rest) SendDatagram(wire.HWAddr, []byte) bool      { return true }
func (r *rest) RejectTooBig(mono.Time, []byte, int)        { r.tooBig++ }

// table is a shadow table with an entry for the peer.
type table struct {
	a            Attempts
	rediscovered int
}

func (s *table) Attempts(wire.HWAddr) *Attempts            { return &s.a }
func (s *table) Touch(mono.Time, wire.HWAddr)              {}
func (s *table) PathLID(ib.GID) (ib.LID, bool)             { return peerLID, true }
func (s *table) VerifyPath(mono.Time, wire.HWAddr, ib.LID) {}
func (s *table) Rediscover(mono.Time, wire.HWAddr)         { s.rediscovered++ }

// faked is Conns between fakes.
type faked struct {
	*Conns
	t     *testing.T
	now   mono.Time
	cm    manager
	qps   pairs
	mem   memory
	rest  rest
	table table
	rec   stats.Recorder
}

func newConns(t *testing.T) *faked {
	b := &faked{t: t, now: mono.Time(time.Hour)}
	b.Conns = New(Config{MaxConns: 4, Idle: time.Minute, Copybreak: 256},
		Ports{Shared: &b.mem, Handshake: &b.cm, QPs: &b.qps, Frames: &b.mem}, &b.rest, &b.table, &b.mem, &b.mem, &b.rec)
	if err := b.Open(ownHW.QPN()); err != nil {
		t.Fatal(err)
	}
	b.SetLocal(Local{HW: ownHW})
	b.SetDatagramMTU(2044)
	b.SetCarrier(b.now, true)
	return b
}

// send sends a packet of n octets to the peer.
func (b *faked) send(n int) int {
	mtu := b.Send(b.now, peerHW, &b.table.a, &mad.PathRecord{DLID: peerLID}, make([]byte, headroom+n))
	b.Flush()
	return mtu
}

// event has the Handshake report an event.
func (b *faked) event(e Event) {
	b.HandleEvent(b.now, &e)
	b.Flush()
}

// expect fails the test unless there is one connection in a state; "" is none.
func (b *faked) expect(state string) {
	b.t.Helper()
	got := ""
	for _, c := range b.List() {
		got += c.State
	}
	if err := b.Check(); err != nil || got != state {
		b.t.Fatalf("connections: %q, want %q; %v", got, state, err)
	}
}

// private is the private data of the peer.
func private(qpn ib.QPN, recvMTU uint32) []byte {
	p := make([]byte, 92)
	wire.PutCMPrivate(p, qpn, recvMTU)
	return p
}

// requestingConns returns Conns that have sent a REQ for a packet of 4000 octets.
func requestingConns(t *testing.T) *faked {
	b := newConns(t)
	if mtu := b.send(4000); mtu != 0 {
		t.Fatalf("not taken: %d", mtu)
	}
	b.expect("connecting")
	return b
}

// acceptingConns returns Conns that have sent a REP.
func acceptingConns(t *testing.T) *faked {
	b := newConns(t)
	rfc, _ := wire.CMServiceIDs(ownHW.QPN())
	b.event(Event{ID: FirstPassive, Kind: Requested, Service: rfc, GID: peerHW.GID(), LID: peerLID,
		Private: private(0x208, RecvMTU)})
	b.expect("connecting")
	return b
}

// openConns returns Conns with an open connection on which nothing is in flight.
func openConns(t *testing.T) *faked {
	b := acceptingConns(t)
	b.event(Event{ID: FirstPassive, Kind: Ready})
	b.expect("connected")
	return b
}

func TestRequestingToOpenOnREP(t *testing.T) {
	b := requestingConns(t)
	b.event(Event{ID: 1, Kind: Accepted, Private: private(0x208, 9004)})
	b.expect("connected")
	if len(b.qps.posted) != 1 || b.List()[0].MTU != 9000 {
		t.Errorf("%d messages posted, %+v", len(b.qps.posted), b.List())
	}
}

func TestRequestingToClosingOnBadREP(t *testing.T) {
	b := requestingConns(t)
	b.event(Event{ID: 1, Kind: Accepted, Private: private(0x209, 9004)})
	b.expect("closing")
	if b.rec.Driver.ConnBadData != 1 || b.rest.resent != 1 {
		t.Errorf("%d refused, %d frames sent another way", b.rec.Driver.ConnBadData, b.rest.resent)
	}
}

func TestRequestingToClosingOnREJ(t *testing.T) {
	b := requestingConns(t)
	b.event(Event{ID: 1, Kind: Rejected})
	b.expect("closing")
	if b.send(4000) != 0 || b.rec.Drops[stats.DropNoPath] != 1 {
		t.Error("a long packet is reported although the next attempt is soon")
	}
	if b.send(1000) != 2044 {
		t.Error("a short packet does not go as a datagram")
	}
	b.now = b.now.Add(holdRejected)
	b.send(4000)
	b.expect("closingconnecting")
}

func TestRequestingToClosingOnNoService(t *testing.T) {
	b := requestingConns(t)
	b.event(Event{ID: 1, Kind: NoService})
	b.expect("closing")
	if !b.table.a.oldService || b.table.a.holdUntil != 0 {
		t.Errorf("%+v", b.table.a)
	}
}

func TestRequestingToClosingOnSilence(t *testing.T) {
	b := requestingConns(t)
	b.event(Event{ID: 1, Kind: Unreachable})
	b.expect("closing")
	if b.send(4000) != 2044 {
		t.Error("a long packet is not refused")
	}
}

func TestRequestingToClosingOnNoCarrier(t *testing.T) {
	b := requestingConns(t)
	b.SetCarrier(b.now, false)
	b.expect("closing")
	if b.rec.Drops[stats.DropLinkDown] != 1 {
		t.Errorf("%d frames dropped", b.rec.Drops[stats.DropLinkDown])
	}
}

func TestAcceptingToOpenOnRTU(t *testing.T) { openConns(t) }

func TestAcceptingToOpenOnMessage(t *testing.T) {
	b := acceptingConns(t)
	m, from := b.Received(b.now, IDRecv|IDConn, 0x1001, ib.Success, 100, false)
	if len(m) != grhLen+100 || from == nil || from.HW != peerHW || from.LID != peerLID {
		t.Errorf("%d octets from %+v", len(m), from)
	}
	b.PostReceives()
	b.expect("connected")
	if b.cm.calls[len(b.cm.calls)-1] != "establish" {
		t.Errorf("%v", b.cm.calls)
	}
}

func TestAcceptingToClosingOnSilence(t *testing.T) {
	b := acceptingConns(t)
	b.event(Event{ID: FirstPassive, Kind: Unreachable})
	b.expect("closing")
}

func TestOpenToClosingOnDREQ(t *testing.T) {
	b := openConns(t)
	b.event(Event{ID: FirstPassive, Kind: Disconnected})
	b.expect("closing")
	if b.rec.Driver.ConnLost != 1 || b.table.rediscovered != 1 {
		t.Errorf("%d broke, %d rediscovered", b.rec.Driver.ConnLost, b.table.rediscovered)
	}
}

func TestOpenToClosingOnError(t *testing.T) {
	b := openConns(t)
	b.send(4000)
	b.Sent(b.now, b.qps.posted[0], ib.RetryExcErr)
	b.expect("closing")
	if b.rec.Drops[stats.DropTxStatus] != 1 || b.Usage().FreeSlots != TxSlots {
		t.Errorf("%d drops, %d free slots", b.rec.Drops[stats.DropTxStatus], b.Usage().FreeSlots)
	}
}

func TestOpenToClosingOnStuck(t *testing.T) {
	b := openConns(t)
	b.send(4000)
	for i := 0; b.List()[0].State == "connected"; i++ {
		if i > 10 {
			t.Fatal("the connection is not ended")
		}
		b.now = b.Deadline()
		b.Tick(b.now)
	}
	if d := b.now.Sub(mono.Time(time.Hour)); d < StuckAfter || d > StuckAfter+watchEvery {
		t.Errorf("ended after %v", d)
	}
}

func TestOpenToClosingOnDisuse(t *testing.T) {
	b := openConns(t)
	b.now = b.now.Add(time.Minute - 1)
	b.EndIdle(b.now)
	b.expect("connected")
	b.now = b.now.Add(1)
	b.EndIdle(b.now)
	b.expect("closing")
}

func TestOpenToClosingOnAnotherREQ(t *testing.T) {
	b := openConns(t)
	rfc, _ := wire.CMServiceIDs(ownHW.QPN())
	b.event(Event{ID: FirstPassive + 1, Kind: Requested, Service: rfc, GID: peerHW.GID(), LID: peerLID,
		Private: private(0x208, RecvMTU)})
	b.expect("closingconnecting")
}

func TestClosingToDestroyedOnFlush(t *testing.T) {
	b := openConns(t)
	b.send(4000)
	b.event(Event{ID: FirstPassive, Kind: Disconnected})
	b.now = b.now.Add(flushWait)
	b.Tick(b.now)
	b.expect("closing") // a message is in flight
	b.Sent(b.now, b.qps.posted[0], ib.WRFlushErr)
	b.now = b.now.Add(flushWait)
	b.Tick(b.now)
	b.expect("")
	if b.qps.stopped != 1 || b.qps.destroyed != 1 {
		t.Errorf("%+v", b.qps)
	}
}

func TestClosingToDestroyedOnTime(t *testing.T) {
	b := openConns(t)
	b.send(4000)
	b.event(Event{ID: FirstPassive, Kind: Disconnected})
	for b.Total() > 0 && b.Deadline() != 0 {
		b.now = b.Deadline()
		b.Tick(b.now)
	}
	if d := b.now.Sub(mono.Time(time.Hour)); d < FlushLimit || d > FlushLimit+flushWait {
		t.Errorf("destroyed after %v", d)
	}
	b.expect("")
}

// A failure of this side is handled as a rejection.
func TestConnectFails(t *testing.T) {
	b := newConns(t)
	b.cm.err = errors.New("no queue pair")
	if b.send(1000) != 2044 || b.rec.Driver.ConnFailed != 1 {
		t.Errorf("%d failed", b.rec.Driver.ConnFailed)
	}
	b.expect("")
}

// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/control/api"
	"weft/test/lab"
	"weft/test/rocefront"
)

// frontCard is a card with a RoCE half, used by a driver of the RFC's text.
type frontCard struct {
	*rocefront.Device
	f  *fleet
	pd *rocefront.PD
	cq *rocefront.CQ
	mr *rocefront.MR
}

// Addresses of the card, and their indices in its table.
const (
	frontAddr, frontAddr6   = "10.78.0.31", "fd78::31"
	frontIndex, frontIndex6 = 1, 2
)

// frontLimit bounds each wait of a pingpong.
const frontLimit = 20 * time.Second

// Places in the memory of the card, and a room for each message that is received.
const (
	frontMemory = 0x7000_0000_0123
	sendAt      = 0
	receiveAt   = 64 << 10
	receiveRoom = 8 << 10
	receives    = 16
	grhSize     = 40
)

// openFront adds the card to the switch of the first node, and starts its driver.
func (f *fleet) openFront(t *testing.T) *frontCard {
	t.Helper()
	var vm api.VM
	f.query(0, &vm, "vm", "add", "r0", "--vesw", "lab", "--rdma")
	f.wait("the card has a carrier", func() bool {
		f.query(0, &vm, "vm", "show", "r0")
		return vm.Carrier
	})
	c := &frontCard{f: f}
	var err error
	if c.Device, err = rocefront.Open(vm.Socket, rocefront.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	for index, addr := range map[int]string{frontIndex: frontAddr, frontIndex6: frontAddr6} {
		a := netip.MustParseAddr(addr)
		err = errors.Join(err, c.AddGID(index, a.As16()))
		c.Answer(a)
	}
	if err == nil {
		c.pd, err = c.CreatePD()
	}
	if err == nil {
		c.cq, err = c.CreateCQ(256)
	}
	if err == nil {
		c.mr, err = c.pd.RegisterNew(frontMemory, receiveAt+receives*receiveRoom, rocefront.LocalWrite)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// frontRow is a pingpong of the card with a program of a guest.
type frontRow struct {
	program string
	kind    uint8 // of queue pair
	size    int   // of a message
	peer    int   // the guest
	v6      bool  // the addresses of the queue pairs
	server  bool  // the card is the server
}

func (r frontRow) String() string {
	s := fmt.Sprintf("%s with guest %d", r.program, r.peer)
	if r.v6 {
		s += " over IPv6"
	}
	if r.server {
		return s + " as server"
	}
	return s + " as client"
}

// unreliable reports whether lost packets stay lost.
func (r frontRow) unreliable() bool { return r.kind != rocefront.RC }

// messages is how many messages go each way.
const messages = 100

// fronts has queue pairs of the card, by their numbers of CREATE_QP, talk with soft-RoCE of the guests.
func (f *fleet) fronts(t *testing.T) {
	c := f.openFront(t)
	rows := []frontRow{
		{program: "ibv_rc_pingpong", kind: rocefront.RC, size: 4096, peer: 0},
		{program: "ibv_rc_pingpong", kind: rocefront.RC, size: 4096, peer: 1, v6: true},
	}
	for _, server := range []bool{false, true} {
		rows = append(rows,
			frontRow{program: "ibv_rc_pingpong", kind: rocefront.RC, size: 4096, peer: 1, server: server},
			frontRow{program: "ibv_uc_pingpong", kind: rocefront.UC, size: 4096, peer: 1, server: server},
			frontRow{program: "ibv_ud_pingpong", kind: rocefront.UD, size: 1000, peer: 1, server: server})
	}
	for _, r := range rows {
		f.row(r.String(), func(t *testing.T) {
			for try := 1; ; try++ {
				theirs, err := c.once(r)
				if err == nil {
					if why := pingpong(theirs, theirs); why != "" {
						t.Errorf("%s\n%s", why, theirs)
					}
					return
				}
				// A trunk goes down when a node gets no processor for long, and packets are lost.
				lost := strings.Contains(theirs, lab.GaveUp) || r.unreliable() && errors.Is(err, rocefront.ErrTimeout)
				if !lost || try == 3 {
					t.Fatalf("%v\n-- guest --\n%s", err, theirs)
				}
				t.Logf("packets were lost: %v", err)
			}
		})
	}
	var vm api.VM
	f.query(0, &vm, "vm", "show", "r0")
	if r := vm.RoCE; !r.Negotiated || len(r.QPs) != 0 || len(r.Refused) != 0 || len(r.GIDs) != 2 {
		t.Errorf("%+v", r)
	}
}

// once runs a pingpong, and returns what the guest's program printed.
func (c *frontCard) once(r frontRow) (theirs string, err error) {
	gid := "::ffff:" + guestAddr(r.peer)
	if r.v6 {
		gid = guestAddr6(r.peer)
	}
	command := fmt.Sprintf("%s -d rxe0 -c -g %s -n %d -s %d", r.program, c.f.rxeGIDOf(r.peer, gid), messages, r.size)
	q, err := c.CreateQP(rocefront.QPInit{PDN: c.pd.Handle, Type: r.kind, SendCQ: c.cq.Number, RecvCQ: c.cq.Number})
	if err != nil {
		return "", err
	}
	p := &frontPingpong{c: c, q: q, row: r}
	defer func() { err = errors.Join(err, p.close()) }()
	if !r.server {
		c.f.serve(r.peer, command)
		err = p.asClient()
		theirs, serr := c.f.served(r.peer, r.program)
		return theirs, errors.Join(err, serr)
	}
	var ln net.Listener
	if err := inNetNS(c.f.spaces[0].Name, func() (err error) {
		ln, err = net.Listen("tcp4", hostAddr(0)+":0")
		return err
	}); err != nil {
		return "", err
	}
	defer ln.Close()
	ln.(*net.TCPListener).SetDeadline(time.Now().Add(2 * frontLimit))
	var serr error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		theirs, serr = c.f.runFor(r.peer, fmt.Sprintf("timeout 30 %s -p %d %s", command, ln.Addr().(*net.TCPAddr).Port,
			hostAddr(0)), 2*time.Minute)
	}()
	err = p.asServer(ln)
	err = errors.Join(err, c.during(func() error { <-ended; return nil }))
	return theirs, errors.Join(err, serr)
}

// during calls f, and has the guest of the card run meanwhile.
func (c *frontCard) during(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	for {
		select {
		case err := <-done:
			return err
		default:
		}
		if err := c.NoFrame(10*time.Millisecond, func([]byte) bool { return false }); err != nil {
			return errors.Join(err, <-done)
		}
	}
}

// inNetNS calls f in a network namespace. The thread goes back to its own then: the end of a thread would be the end of
// programs that it has started.
func inNetNS(name string, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer own.Close()
	ns, err := os.Open(filepath.Join("/run/netns", name))
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return err
	}
	defer func() {
		if err := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); err != nil {
			panic(err)
		}
	}()
	return f()
}

// frontPingpong is the card's end of a pingpong of rdma-core's examples.
type frontPingpong struct {
	c   *frontCard
	q   *rocefront.QP
	row frontRow

	peer    destination
	ah      *rocefront.AH // nil: the queue pair is connected
	arrived []int         // places of messages that came
	sent    bool          // whether the last message is
}

// destination is what the two ends of a pingpong exchange over TCP.
type destination struct {
	qpn, psn uint32
	gid      [16]byte
}

// farewell is what the client sends when it has the server's destination.
const farewell = "done\x00"

func (d destination) String() string {
	return fmt.Sprintf("%04x:%06x:%06x:%s\x00", 0, d.qpn, d.psn, hex.EncodeToString(d.gid[:]))
}

// readDestination reads what String returns.
func readDestination(r io.Reader) (d destination, err error) {
	b := make([]byte, len(d.String()))
	if _, err := io.ReadFull(r, b); err != nil {
		return d, fmt.Errorf("the guest's destination: %w", err)
	}
	fields := strings.Split(strings.TrimRight(string(b), "\x00"), ":")
	if len(fields) != 4 {
		return d, fmt.Errorf("the guest's destination: %q", b)
	}
	qpn, err1 := strconv.ParseUint(fields[1], 16, 24)
	psn, err2 := strconv.ParseUint(fields[2], 16, 24)
	n, err3 := hex.Decode(d.gid[:], []byte(fields[3]))
	d.qpn, d.psn = uint32(qpn), uint32(psn)
	if err := errors.Join(err1, err2, err3); err != nil || n != len(d.gid) {
		return d, fmt.Errorf("the guest's destination: %q: %w", b, err)
	}
	return d, nil
}

// own is the card's destination.
func (p *frontPingpong) own() destination {
	return destination{p.q.Number, firstPSN, netip.MustParseAddr(p.address()).As16()}
}

// firstPSN is near the largest PSN, so that the PSNs of a pingpong wrap.
const firstPSN = 0xffffe0

func (p *frontPingpong) address() string {
	if p.row.v6 {
		return frontAddr6
	}
	return frontAddr
}

// asClient connects to the server in the guest, and sends first.
func (p *frontPingpong) asClient() error {
	var conn net.Conn
	err := p.c.during(func() error {
		err := inNetNS(p.c.f.spaces[0].Name, func() (err error) {
			conn, err = net.DialTimeout("tcp4", fmt.Sprintf("%s:%d", guestAddr(p.row.peer), pingpongPort), frontLimit)
			return err
		})
		if err != nil {
			return err
		}
		conn.SetDeadline(time.Now().Add(2 * frontLimit))
		if _, err := io.WriteString(conn, p.own().String()); err != nil {
			return err
		}
		p.peer, err = readDestination(conn)
		return err
	})
	if conn != nil {
		defer conn.Close()
	}
	if err == nil {
		err = p.connect()
	}
	if err == nil {
		_, err = io.WriteString(conn, farewell)
	}
	for i := 0; i < messages && err == nil; i++ {
		if err = p.send(p.content(i)); err == nil {
			err = p.receive(p.content(i))
		}
	}
	return err
}

// asServer waits for the client in the guest, and answers each of its messages.
func (p *frontPingpong) asServer(ln net.Listener) error {
	var conn net.Conn
	err := p.c.during(func() (err error) {
		if conn, err = ln.Accept(); err != nil {
			return err
		}
		conn.SetDeadline(time.Now().Add(2 * frontLimit))
		p.peer, err = readDestination(conn)
		return err
	})
	if conn != nil {
		defer conn.Close()
	}
	if err != nil {
		return err
	}
	if err := p.connect(); err != nil {
		return err
	}
	if err := p.c.during(func() error {
		_, err := io.WriteString(conn, p.own().String())
		b := make([]byte, len(farewell))
		if err == nil {
			_, err = io.ReadFull(conn, b)
		}
		if err == nil && string(b) != farewell {
			err = fmt.Errorf("the guest's last word: %q", b)
		}
		return err
	}); err != nil {
		return err
	}
	// The client's first message is its own; then it sends what it got.
	want := bytes.Repeat([]byte{clientFill}, p.row.size)
	clearPages(want)
	for i := range messages {
		if err := p.receive(want); err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
		want = p.content(i)
		if err := p.send(want); err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
	}
	return nil
}

// clientFill is what a client of the pingpongs fills its memory with.
const clientFill = 0x7b

// clearPages makes the first octet of each page what a server of the pingpongs demands with -c.
func clearPages(b []byte) {
	for i := 0; i < len(b); i += 4096 {
		b[i] = 0
	}
}

// content is the message with a number.
func (p *frontPingpong) content(i int) []byte {
	b := make([]byte, p.row.size)
	for k := range b {
		b[k] = byte(k*7 + k>>8*13 + i*31 + int(p.row.kind))
	}
	clearPages(b)
	return b
}

// pingpongQKey is the Q_Key of the pingpongs' UD queue pairs.
const pingpongQKey = 0x11111111

// connect fills the receive queue, and brings the queue pair to RTS.
func (p *frontPingpong) connect() error {
	index := uint8(frontIndex)
	if p.row.v6 {
		index = frontIndex6
	}
	route := rocefront.AHAttr{Route: rocefront.GlobalRoute{DGID: p.peer.gid, SGIDIndex: index, HopLimit: 64}}
	to := rocefront.Connection{Peer: p.peer.qpn, Route: route, PathMTU: rocefront.MTU1024, SQPSN: firstPSN,
		RQPSN: p.peer.psn, Timeout: 14, Retry: 7, RNR: 7, MinRNRTimer: 12, RdAtomic: 1, QKey: pingpongQKey}
	if err := p.q.ToInit(to); err != nil {
		return err
	}
	for slot := range receives {
		if err := p.post(slot); err != nil {
			return err
		}
	}
	if err := errors.Join(p.q.ToRTR(to), p.q.ToRTS(to)); err != nil {
		return err
	}
	if p.row.kind == rocefront.UD {
		var err error
		p.ah, err = p.c.pd.CreateAH(route)
		return err
	}
	var vm api.VM
	if err := p.c.f.nodes[0].Query(&vm, "vm", "show", "r0"); err != nil {
		return err
	}
	if l := vm.RoCE.QPs; len(l) != 1 || l[0].QPN != p.q.Number || l[0].State != "RTS" || l[0].RemoteQPN != p.peer.qpn ||
		l[0].RemoteGID != netip.AddrFrom16(p.peer.gid).Unmap().String() {
		return fmt.Errorf("the node lists %+v, want queue pair %d with %+v", l, p.q.Number, p.peer)
	}
	return nil
}

// sendID is the identifier of requests to send; those to receive have the number of their place.
const sendID = 1 << 40

func (p *frontPingpong) post(slot int) error {
	return p.q.PostRecv(uint64(slot), p.c.mr.SGE(receiveAt+slot*receiveRoom, receiveRoom))
}

// send sends a message, after the one before was sent.
func (p *frontPingpong) send(b []byte) error {
	p.c.mr.Put(sendAt, b)
	s := rocefront.Send{ID: sendID, Opcode: rocefront.OpSend, Flags: rocefront.Signaled,
		List: []rocefront.SGE{p.c.mr.SGE(sendAt, len(b))}}
	if p.ah != nil {
		s.AH, s.RemoteQPN, s.RemoteQKey = p.ah, p.peer.qpn, pingpongQKey
	}
	p.sent = false
	if err := p.q.PostSend(s); err != nil {
		return err
	}
	for !p.sent {
		if err := p.poll(); err != nil {
			return fmt.Errorf("send: %w", err)
		}
	}
	return nil
}

// receive waits for a message, which must be want.
func (p *frontPingpong) receive(want []byte) error {
	for len(p.arrived) == 0 {
		if err := p.poll(); err != nil {
			return fmt.Errorf("receive: %w", err)
		}
	}
	slot, at := p.arrived[0], 0
	p.arrived = p.arrived[1:]
	if p.ah != nil {
		at = grhSize
	}
	have := p.c.mr.Get(receiveAt+slot*receiveRoom+at, len(want))
	for i := range want {
		if have[i] != want[i] {
			return fmt.Errorf("the contents differ from octet %d on: want %#x, have %#x", i, want[i], have[i])
		}
	}
	return p.post(slot)
}

// poll takes a completion.
func (p *frontPingpong) poll() error {
	c, err := p.c.cq.Poll(frontLimit)
	if err != nil {
		return err
	}
	want := rocefront.Completion{ID: c.ID, Opcode: rocefront.WCRecv, ByteLen: uint32(p.row.size), QPN: p.q.Number}
	if c.ID == sendID {
		p.sent, want.Opcode = true, rocefront.WCSend
	} else {
		p.arrived = append(p.arrived, int(c.ID))
		if p.ah != nil {
			want.ByteLen, want.SrcQP, want.Flags = want.ByteLen+grhSize, p.peer.qpn, rocefront.WCGRH
		}
	}
	if c != want {
		return fmt.Errorf("completion: want %+v, have %+v", want, c)
	}
	return nil
}

// close destroys the queue pair, and takes what is left in the completion queue.
func (p *frontPingpong) close() error {
	err := p.q.Destroy()
	if p.ah != nil {
		err = errors.Join(err, p.ah.Destroy())
	}
	for {
		if _, e := p.c.cq.Poll(0); errors.Is(e, rocefront.ErrTimeout) {
			return err
		} else if e != nil {
			return errors.Join(err, e)
		}
	}
}

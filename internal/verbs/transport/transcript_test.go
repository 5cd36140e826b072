// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
)

var rewrite = flag.Bool("rewrite", false, "write what the transcripts produce into them")

// TestTranscripts runs testdata/transcripts/*.txt. A line at the margin is a
// comment (#) or a command; the indented lines below it are what it printed.
//
//	pair type=rc [mtu=256 maxrun=256 local ooo ... any attribute]
//	     sides A (QPN 17, first PSN 100) and B (QPN 18, first PSN 200) in RTS
//	qp X type=rc state=init|rtr|rts …   one side, in that state
//	post X write|write_imm|send|send_imm|send_inv|read|cmp_swap|fetch_add|local_inv|bind_mw|reg_mr|atomic_write|unknown
//	     [id= len= off= remote= key= rkey= imm= fence se signaled inline sges=]
//	recv X [id= len= off= key= bad]
//	send X [hold]  drain X's Next into its wire; hold: without Commit
//	wire X         print what is on X's wire
//	deliver X [n]  hand n runs (default all) of X's wire to the peer
//	drop X [n] · dup X · swap X   the first runs of X's wire
//	run            send and deliver both ways until idle
//	tick 67ms      let time pass, then send both sides
//	inject X OPCODE psn= … [unreadable]  hand X a packet written by hand
//	modify X state=… attr=…       print the error, if any
//	orphan X       X's program died
//	orphandone X   whether X has nothing more to do for its peer
//	revoke X       end X's region
//	unmap X        X's memory is gone, as after munmap: its region stays, and every write fails
//	fault X        report to X that the burst it sent last was unreadable
//	placefail X [request|write]   fail a copy of X's last Handle: of a SEND, of a response, of a WRITE
//	commit X · destroy X · fill X value= · same X off= at= len=
//	show X         state, deadline
//	count X name…  counters
//	bytes X off n  memory
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/transcripts/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			got := runTranscript(t, string(want))
			if *rewrite {
				if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			w, g := strings.Split(string(want), "\n"), strings.Split(got, "\n")
			for i := range max(len(w), len(g)) {
				var a, b string
				if i < len(w) {
					a = w[i]
				}
				if i < len(g) {
					b = g[i]
				}
				if a != b {
					t.Fatalf("%s:%d:\nwant %s\n got %s\n(go test -run %s -rewrite accepts)\n%s", name, i+1, a, b,
						t.Name(), got)
				}
			}
		})
	}
}

// script is the state of one transcript.
type script struct {
	now   mono.Time
	out   strings.Builder
	sides map[string]*side
	wires map[string][]*pkt.Burst
	last  map[string]pkt.Burst
	ids   uint64
}

func (s *script) printf(f string, args ...any) { fmt.Fprintf(&s.out, "  "+f+"\n", args...) }

func runTranscript(t *testing.T, text string) string {
	s := &script{now: mono.Time(time.Second), sides: map[string]*side{}, wires: map[string][]*pkt.Burst{},
		last: map[string]pkt.Burst{}}
	for n, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		if strings.HasPrefix(line, "  ") {
			continue
		}
		fmt.Fprintf(&s.out, "%s\n", line)
		if line == "" || line[0] == '#' {
			continue
		}
		if err := s.command(strings.Fields(line)); err != nil {
			t.Fatalf("line %d: %s: %v", n+1, line, err)
		}
	}
	return s.out.String()
}

// args are the words of a command: values by name, and plain words.
type args struct {
	values map[string]string
	words  []string
	used   map[string]bool
}

func parseArgs(f []string) *args {
	a := &args{values: map[string]string{}, used: map[string]bool{}}
	for _, w := range f {
		if k, v, ok := strings.Cut(w, "="); ok {
			a.values[k] = v
		} else {
			a.words = append(a.words, w)
		}
	}
	return a
}

func (a *args) num(name string, def uint64) uint64 {
	a.used[name] = true
	v, ok := a.values[name]
	if !ok {
		return def
	}
	n, err := strconv.ParseUint(v, 0, 64)
	if err != nil {
		panic(err)
	}
	return n
}

func (a *args) has(word string) bool {
	for _, w := range a.words {
		if w == word {
			return true
		}
	}
	return false
}

func (a *args) check() error {
	for k := range a.values {
		if !a.used[k] {
			return fmt.Errorf("unknown argument %s", k)
		}
	}
	return nil
}

var typeNames = map[string]ib.QPType{"rc": ib.RC, "uc": ib.UC, "ud": ib.UD, "gsi": ib.GSI}
var stateByName = map[string]ib.QPState{"reset": ib.Reset, "init": ib.Init, "rtr": ib.RTR, "rts": ib.RTS,
	"sqd": ib.SQD, "sqe": ib.SQE, "err": ib.Err}

func other(name string) string {
	if name == "A" {
		return "B"
	}
	return "A"
}

func (s *script) command(f []string) error {
	cmd, a := f[0], parseArgs(f[1:])
	if cmd == "pair" {
		for _, name := range []string{"A", "B"} {
			if err := s.newSide(name, "rts", a); err != nil {
				return err
			}
		}
		return a.check()
	}
	if cmd == "run" {
		s.run()
		return nil
	}
	if cmd == "tick" {
		d, err := time.ParseDuration(a.words[0])
		s.now = s.now.Add(d)
		for _, n := range []string{"A", "B"} {
			if s.sides[n] != nil {
				s.send(n)
				s.sides[n].q.Commit(s.now)
			}
		}
		return err
	}
	name := a.words[0]
	a.words = a.words[1:]
	x := s.sides[name]
	if x == nil && cmd != "qp" {
		return fmt.Errorf("no side %s", name)
	}
	switch cmd {
	case "qp":
		st := a.values["state"]
		a.used["state"] = true
		if err := s.newSide(name, st, a); err != nil {
			return err
		}
	case "post":
		return s.post(x, a)
	case "recv":
		s.ids++
		wr := &RecvWR{ID: a.num("id", s.ids), BadWQE: a.has("bad")}
		if n := a.num("len", 4096); n > 0 {
			wr.SGE = []ib.SGE{{Addr: base + a.num("off", 0), Len: uint32(n), LKey: ib.Key(a.num("key", testKey))}}
			if k := a.num("sges", 1); k > 1 {
				g := wr.SGE[0]
				wr.SGE = nil
				for i := range k {
					g.Addr, g.Len = base+a.num("off", 0)+i*(n/k), uint32(n/k)
					wr.SGE = append(wr.SGE, g)
				}
			}
		}
		x.recvs = append(x.recvs, wr)
		x.q.RecvPosted(s.now)
	case "send":
		s.send(name)
		if !a.has("hold") {
			x.q.Commit(s.now)
		}
	case "wire":
		for _, r := range s.wires[name] {
			s.printf("%s %s", name, runText(r))
		}
	case "deliver":
		n := len(s.wires[name])
		if len(a.words) > 0 {
			n, _ = strconv.Atoi(a.words[0])
		}
		s.deliver(name, n)
	case "drop":
		n := 1
		if len(a.words) > 0 {
			n, _ = strconv.Atoi(a.words[0])
		}
		s.wires[name] = s.wires[name][n:]
	case "dup":
		w := s.wires[name]
		s.wires[name] = append([]*pkt.Burst{w[0], w[0]}, w[1:]...)
	case "swap":
		w := s.wires[name]
		w[0], w[1] = w[1], w[0]
	case "inject":
		return s.inject(name, a)
	case "modify":
		return s.modify(x, a)
	case "orphan":
		s.printf("%s %v", name, x.q.Orphan(s.now))
	case "orphandone":
		s.printf("%s %v", name, x.q.OrphanDone())
	case "revoke":
		x.region.Revoke()
	case "unmap":
		x.opaque().bad = base
	case "fault":
		r := s.last[name]
		x.q.SourceFault(s.now, &r)
		x.q.Commit(s.now)
	case "placefail":
		switch {
		case a.has("request"):
			x.q.req.PlacementFailed()
		case a.has("write"):
			x.q.rsp.written.PlacementFailed()
		default:
			x.q.rsp.received.PlacementFailed()
		}
	case "commit":
		x.q.Commit(s.now)
	case "destroy":
		x.q.Destroy()
	case "show":
		d := "none"
		if t := x.q.Deadline(); t != 0 {
			d = t.Sub(s.now).String()
		}
		s.printf("%s %v deadline %s pending %v", name, x.q.State(), d, x.q.Pending())
	case "count":
		v := reflect.ValueOf(x.q.Counters()).Elem()
		for _, w := range a.words {
			s.printf("%s %s %d", name, w, v.FieldByName(w).Uint())
		}
	case "bytes":
		off, err := strconv.ParseInt(a.words[0], 0, 64)
		if err != nil {
			return err
		}
		n, err := strconv.ParseInt(a.words[1], 0, 64)
		if err != nil {
			return err
		}
		s.printf("%s %x", name, x.buf[off:off+n])
	case "fill":
		for i := range x.buf {
			x.buf[i] = byte(a.num("value", 0xa5))
		}
	case "same":
		n := int(a.num("len", 0))
		p, q := x.buf[a.num("off", 0):][:n], s.sides[other(name)].buf[a.num("at", 0):][:n]
		s.printf("same bytes: %v", bytes.Equal(p, q))
	default:
		return fmt.Errorf("unknown command")
	}
	return a.check()
}

// newSide makes side name and brings it to a state.
func (s *script) newSide(name, state string, a *args) error {
	typ, ok := typeNames[a.values["type"]]
	a.used["type"] = true
	if !ok {
		return fmt.Errorf("no type")
	}
	self, peer, qpn := byte(1), byte(2), ib.QPN(17)
	if name == "B" {
		self, peer, qpn = 2, 1, 18
	}
	cfg := testConfig(typ, qpn)
	cfg.SRQ, cfg.SigAll = a.has("srq"), a.has("sigall")
	cfg.PortMTU = ib.MTU(a.num("portmtu", uint64(ib.MTU1024)))
	cfg.Window = uint32(a.num("window", 64<<10))
	cfg.Cap.MaxSendWR = uint32(a.num("sendwr", 16))
	if a.has("ooo") {
		cfg.Buffers = NewBuffers(1)
	}
	x := newSide(name, cfg, 1<<17, s.printf)
	for i := range x.buf {
		x.buf[i] = byte(i) ^ byte(i>>8) ^ byte(self)
	}
	s.sides[name], s.wires[name] = x, nil
	at := &Attr{Port: 1, Access: ib.Access(a.num("access", uint64(ib.RemoteRead|ib.RemoteWrite|ib.RemoteAtomic))),
		QKey: ib.QKey(a.num("qkey", 0x11)),
		Path: &ib.Path{SGID: gid(self), DGID: gid(peer), MaxRun: uint32(a.num("maxrun", 256)),
			Local: a.has("local"), HopLimit: 64},
		PathMTU: ib.MTU(a.num("mtucode", uint64(ib.MTU256))), DestQPN: 17 + ib.QPN(peer) - 1,
		RQPSN: ib.PSN(a.num("psn", 100) * uint64(peer)), SQPSN: ib.PSN(a.num("psn", 100) * uint64(self)),
		MaxDestRdAtomic: uint8(a.num("destrd", 4)), MaxRdAtomic: uint8(a.num("rd", 4)),
		MinRNRTimer: uint8(a.num("minrnr", 12)), Timeout: uint8(a.num("timeout", 14)), RetryCnt: uint8(a.num("retry",
			7)), RNRRetry: uint8(a.num("rnr", 7))}
	if v := a.num("rqpsn", 1<<32); v != 1<<32 {
		at.RQPSN = ib.PSN(v)
	}
	if v := a.num("sqpsn", 1<<32); v != 1<<32 {
		at.SQPSN = ib.PSN(v)
	}
	for st := ib.Init; st <= stateByName[state] && st <= ib.RTS; st++ {
		at.State = st
		mask := transitions[st-1][st][typ].required | ib.AttrState
		if st == ib.RTR && typ == ib.RC {
			mask |= ib.AttrAccessFlags
		}
		if err := x.q.Modify(s.now, at, mask); err != nil {
			return err
		}
	}
	return nil
}

var opNames = map[string]ib.WROp{"write": ib.WRWrite, "write_imm": ib.WRWriteImm, "send": ib.WRSend,
	"send_imm": ib.WRSendImm,
	"read":     ib.WRRead, "cmp_swap": ib.WRCmpSwap, "fetch_add": ib.WRFetchAdd, "local_inv": ib.WRLocalInv,
	"bind_mw": ib.WRBindMW, "reg_mr": ib.WRRegMR, "send_inv": ib.WRSendInv, "atomic_write": ib.WRAtomicWrite, "unknown": ib.WRAtomicWrite + 1}

func (s *script) post(x *side, a *args) error {
	wr := x.q.SendSlot()
	if wr == nil {
		s.printf("%s send queue full", x.name)
		return nil
	}
	op, ok := opNames[a.words[0]]
	if !ok {
		return fmt.Errorf("no operation %s", a.words[0])
	}
	s.ids++
	wr.ID, wr.Op = a.num("id", s.ids), op
	for w, f := range map[string]ib.SendFlags{"fence": ib.Fence, "se": ib.Solicited, "inline": ib.Inline,
		"reserved": 0x40} {
		if a.has(w) {
			wr.Flags |= f
		}
	}
	if !a.has("unsignaled") {
		wr.Flags |= ib.Signaled
	}
	n := a.num("len", 8)
	off := a.num("off", 0)
	switch {
	case a.has("inline"):
		wr.InlineData = x.buf[off : off+n]
	case n > 0:
		k := a.num("sges", 1)
		for i := range k {
			wr.SGE = append(wr.SGE, ib.SGE{Addr: base + off + i*(n/k), Len: uint32(n / k),
				LKey: ib.Key(a.num("key", testKey))})
		}
	}
	wr.RemoteVA, wr.RKey, wr.Imm = base+a.num("remote", 0x8000), ib.Key(a.num("rkey", testKey)), uint32(a.num("imm",
		0x11223344))
	wr.Compare, wr.SwapAdd = a.num("compare", 0), a.num("swap", 1)
	wr.BadWQE = a.has("bad")
	if x.q.datagram() && !a.has("nopath") {
		wr.Path = &ib.Path{SGID: gid(1), DGID: gid(2), MaxRun: 4096, HopLimit: 1}
		if x.name == "B" {
			wr.Path.SGID, wr.Path.DGID = gid(2), gid(1)
		}
	}
	wr.DestQPN, wr.QKey = ib.QPN(a.num("dqpn", 18)), ib.QKey(a.num("qkey", 0x11))
	x.q.Post(s.now)
	return a.check()
}

// send drains Next onto the wire; what it carries is copied, as a link does.
func (s *script) send(name string) {
	x := s.sides[name]
	var r pkt.Burst
	for x.q.Next(s.now, &r) {
		c := r
		s.last[name] = r
		buf := make([]byte, r.Data.Len)
		if x.batch.Gather([][]byte{buf}, &r.Data, 0) != mem.OK {
			s.printf("%s %s: unreadable", name, runText(&r))
			x.q.SourceFault(s.now, &r)
			continue
		}
		c.Data = mem.BytesPayload(buf)
		s.printf("%s> %s", name, runText(&c))
		s.wires[name] = append(s.wires[name], &c)
	}
}

func (s *script) deliver(name string, n int) {
	y := s.sides[other(name)]
	for range n {
		r := s.wires[name][0]
		s.wires[name] = s.wires[name][1:]
		if y != nil {
			y.q.Handle(s.now, r, y.batch)
		}
	}
	if y != nil {
		y.batch.Flush()
		y.q.Commit(s.now)
	}
}

func (s *script) run() {
	for range 1000 {
		for _, n := range []string{"A", "B"} {
			if s.sides[n] != nil {
				s.send(n)
				s.sides[n].q.Commit(s.now)
			}
		}
		if len(s.wires["A"])+len(s.wires["B"]) == 0 {
			return
		}
		for _, n := range []string{"A", "B"} {
			s.deliver(n, len(s.wires[n]))
		}
	}
	panic("run does not end")
}

// inject hands side name one packet.
func (s *script) inject(name string, a *args) error {
	x := s.sides[name]
	want := strings.ReplaceAll(a.words[0], "_", " ")
	var r pkt.Burst
	found := false
	for op := 0; op < 256; op++ {
		if i := ib.Opcode(op).Info(); i.Valid && ib.Opcode(op).String() == want {
			r.Opcode, found = ib.Opcode(op), true
		}
	}
	if !found {
		return fmt.Errorf("no opcode %q", want)
	}
	self, peer := byte(1), byte(2)
	if name == "B" {
		self, peer = 2, 1
	}
	n := a.num("len", 0)
	r.Count, r.MTU = uint32(a.num("count", 1)), uint32(a.num("mtu", 256))
	r.Path = &ib.Path{SGID: gid(byte(a.num("from", uint64(peer)))), DGID: gid(self), HopLimit: 64}
	r.PSN, r.PKey, r.DestQPN = ib.PSN(a.num("psn", 0)), ib.PKey(a.num("pkey", 0xffff)), x.q.QPN()
	r.QKey, r.SrcQPN = ib.QKey(a.num("qkey", 0x11)), ib.QPN(a.num("src", 99))
	r.VA, r.RKey, r.DMALen = base+a.num("va", 0x8000), ib.Key(a.num("rkey", testKey)), uint32(a.num("dmalen", n))
	r.SwapAdd, r.Compare, r.Orig = a.num("swap", 1), a.num("compare", 0), a.num("orig", 0x1122334455667788)
	r.Syndrome, r.MSN, r.Imm = ib.Syndrome(a.num("syn", 0x1f)), uint32(a.num("msn", 0)), uint32(a.num("imm", 0xabcd))
	r.InvKey = ib.Key(a.num("inv", testKey))
	r.AckReq, r.SE = !a.has("noack"), a.has("se")
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(0xc0 + i&15)
	}
	r.Data = mem.BytesPayload(p)
	if a.has("unreadable") {
		gone := &mem.Region{Len: n}
		gone.Revoke()
		r.Data = mem.ListPayload([]mem.Seg{{Region: gone, Len: n}}, 0, int(n))
	}
	x.q.Handle(s.now, &r, x.batch)
	if !a.has("more") {
		x.batch.Flush()
		x.q.Commit(s.now)
	}
	return a.check()
}

var attrNames = []struct {
	name string
	bit  ib.AttrMask
	set  func(a *Attr, v uint64)
}{
	{"cur", ib.AttrCurState, func(a *Attr, v uint64) { a.CurState = ib.QPState(v) }},
	{"notify", ib.AttrEnSQDAsyncNotify, func(a *Attr, v uint64) { a.EnSQDAsyncNotify = v != 0 }},
	{"access", ib.AttrAccessFlags, func(a *Attr, v uint64) { a.Access = ib.Access(v) }},
	{"timeout", ib.AttrTimeout, func(a *Attr, v uint64) { a.Timeout = uint8(v) }},
	{"retry", ib.AttrRetryCnt, func(a *Attr, v uint64) { a.RetryCnt = uint8(v) }},
	{"minrnr", ib.AttrMinRNRTimer, func(a *Attr, v uint64) { a.MinRNRTimer = uint8(v) }},
	{"qkey", ib.AttrQKey, func(a *Attr, v uint64) { a.QKey = ib.QKey(v) }},
}

func (s *script) modify(x *side, a *args) error {
	var at Attr
	var mask ib.AttrMask
	if v, ok := a.values["state"]; ok {
		at.State, mask = stateByName[v], ib.AttrState
		a.used["state"] = true
	}
	for _, n := range attrNames {
		if _, ok := a.values[n.name]; ok {
			n.set(&at, a.num(n.name, 0))
			mask |= n.bit
		}
	}
	if err := x.q.Modify(s.now, &at, mask); err != nil {
		s.printf("%s error: %v", x.name, err)
	}
	return a.check()
}

func runText(r *pkt.Burst) string {
	i := r.Opcode.Info()
	t := fmt.Sprintf("%v psn=%d", r.Opcode, r.PSN)
	if r.Count > 1 {
		t += fmt.Sprintf("…%d", r.LastPSN())
	}
	if i.Payload {
		t += fmt.Sprintf(" len=%d", r.Data.Len)
	}
	if i.Ext&(ib.ExtRETH|ib.ExtAtomic) != 0 {
		t += fmt.Sprintf(" va=+%#x", r.VA-base)
	}
	if i.Ext&ib.ExtRETH != 0 {
		t += fmt.Sprintf(" dmalen=%d", r.DMALen)
	}
	if i.Ext&ib.ExtAtomic != 0 {
		t += fmt.Sprintf(" swapadd=%d compare=%d", r.SwapAdd, r.Compare)
	}
	if i.Ext&ib.ExtAETH != 0 {
		t += fmt.Sprintf(" syn=%#02x msn=%d", uint8(r.Syndrome), r.MSN)
	}
	if i.Ext&ib.ExtAtomicAck != 0 {
		t += fmt.Sprintf(" orig=%#x", r.Orig)
	}
	if i.Ext&ib.ExtImm != 0 {
		t += fmt.Sprintf(" imm=%#x", r.Imm)
	}
	if i.Ext&ib.ExtIETH != 0 {
		t += fmt.Sprintf(" inv=%#x", uint32(r.InvKey))
	}
	if i.Ext&ib.ExtDETH != 0 {
		t += fmt.Sprintf(" dqpn=%d qkey=%#x src=%d", r.DestQPN, uint32(r.QKey), r.SrcQPN)
	}
	if r.SE {
		t += " se"
	}
	if r.AckReq {
		t += " a"
	}
	return t
}

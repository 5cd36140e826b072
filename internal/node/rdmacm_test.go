// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/control/api"
	"weft/internal/host/rundir"
	"weft/internal/proto/abi"
	"weft/internal/service/cm"
)

func (r *running) cmDial() *net.UnixConn {
	r.t.Helper()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: filepath.Join(r.cfg.Dir, rundir.CMSock),
		Net: "unixpacket"})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(limit))
	return c
}

// cmOpen opens a connection for op.
func (r *running) cmOpen(op abi.CMOp) (*net.UnixConn, [16]byte) {
	r.t.Helper()
	c := r.cmDial()
	a, err := abi.ParseCMOpened(umadAsk(r.t.(*testing.T), c, abi.CMOpen{Op: op, Version: abi.CMVersion}.Append(nil)))
	if err != nil || a.Error != 0 {
		r.t.Fatalf("open: %v, %+v", err, a)
	}
	return c, a.Token
}

// cmProgram is a program with a channel, as the preload library serves it.
type cmProgram struct {
	r        *running
	channel  *net.UnixConn
	commands *net.UnixConn
	token    [16]byte
}

func (r *running) cmProgram() *cmProgram {
	r.t.Helper()
	p := &cmProgram{r: r}
	p.channel, p.token = r.cmOpen(abi.CMOpChannel)
	p.commands, _ = r.cmOpen(abi.CMOpCommands)
	return p
}

func (p *cmProgram) command(m abi.CMCommand, body ...byte) abi.CMAnswer {
	p.r.t.Helper()
	m.Token, m.InLen, m.OutLen = p.token, uint32(len(body)), uint32(len(m.Data))
	copy(m.Data[:], body)
	a, err := abi.ParseCMAnswer(umadAsk(p.r.t.(*testing.T), p.commands, m.Append(nil)))
	if err != nil {
		p.r.t.Fatal(err)
	}
	return a
}

// create makes an identifier.
func (p *cmProgram) create(uid uint64) uint32 {
	p.r.t.Helper()
	b := make([]byte, 24)
	binary.LittleEndian.PutUint64(b, uid)
	binary.LittleEndian.PutUint16(b[16:], uint16(cm.SpaceTCP))
	a := p.command(abi.CMCommand{Command: abi.CMCreateID}, b...)
	if a.Error != 0 || a.Length != 4 {
		p.r.t.Fatalf("%+v", a)
	}
	return binary.LittleEndian.Uint32(a.Data[:])
}

// resolve resolves the path to an address.
func (p *cmProgram) resolve(id uint32, addr string) {
	p.r.t.Helper()
	b := make([]byte, 64)
	v := netip.MustParseAddr(addr).As4()
	b[28] = unix.AF_INET
	copy(b[32:], v[:])
	binary.LittleEndian.PutUint32(b[56:], id)
	if a := p.command(abi.CMCommand{Command: abi.CMResolveIP}, b...); a.Error != 0 {
		p.r.t.Fatalf("%+v", a)
	}
}

// notice takes one in.
func (p *cmProgram) notice() {
	p.r.t.Helper()
	b := make([]byte, 64)
	if n, err := p.channel.Read(b); n != abi.CMNoticeSize || err != nil {
		p.r.t.Fatalf("%d octets, %v", n, err)
	}
}

func TestCMChannel(t *testing.T) {
	r := run(t, nil)
	p := r.cmProgram()
	one, two := p.create(1), p.create(2)
	p.resolve(one, "127.0.0.1")
	p.resolve(two, "127.0.0.1")
	p.notice()
	// Two events: the next notice comes with the first event.
	a := p.command(abi.CMCommand{Command: abi.CMGetEvent, Flags: abi.CMNoticed}, make([]byte, 8)...)
	if a.Error != 0 || a.Length != 336 || binary.LittleEndian.Uint64(a.Data[:]) != 1 || a.Flags != 0 {
		t.Fatalf("%+v", a)
	}
	p.notice()
	// The second is removed with its identifier: its notice, which was read already, is reported as
	// stale until it is acknowledged.
	d := make([]byte, 16)
	binary.LittleEndian.PutUint32(d[8:], two)
	if a = p.command(abi.CMCommand{Command: abi.CMDestroyID}, d...); a.Error != 0 || a.Flags != abi.CMStale {
		t.Fatalf("%+v", a)
	}
	if a = p.command(abi.CMCommand{Command: abi.CMResume, Flags: abi.CMNoticed}); a.Error != 0 || a.Flags != 0 {
		t.Fatalf("%+v", a)
	}
	if a = p.command(abi.CMCommand{Command: abi.CMGetEvent, Flags: abi.CMNoticed},
		make([]byte, 8)...); a.Error != uint32(unix.EAGAIN) {
		t.Fatalf("%+v", a)
	}
	// Another channel, and an identifier that moves there.
	q := r.cmProgram()
	d = make([]byte, 16)
	binary.LittleEndian.PutUint32(d[8:], one)
	if a = q.command(abi.CMCommand{Command: abi.CMMigrateID}, d...); a.Error != uint32(unix.ENOENT) {
		t.Fatalf("%+v", a)
	}
	if a = q.command(abi.CMCommand{Command: abi.CMMigrateID, From: p.token}, d...); a.Error != 0 ||
		binary.LittleEndian.Uint32(a.Data[:]) != 1 {
		t.Fatalf("%+v", a)
	}
	res, err := api.Get(context.Background(), r.cli, api.GetResources)
	if err != nil || len(res.CMIDs) != 1 || res.CMIDs[0].State != "ADDR_RESOLVED" ||
		res.CMIDs[0].Device != r.cfg.Device {
		t.Fatalf("%v %+v", err, res.CMIDs)
	}
	q.channel.Close()
	eventually(t, "nothing is left", func() bool {
		res, err := api.Get(context.Background(), r.cli, api.GetResources)
		return err == nil && len(res.CMIDs) == 0
	})
	// The channel is gone; the connection for commands is not.
	if a = q.command(abi.CMCommand{Command: abi.CMGetEvent}, make([]byte, 8)...); a.Error != uint32(unix.EIO) {
		t.Fatalf("%+v", a)
	}
}

// Hostile programs: the node answers or hangs up, and serves others.
func TestCMHostile(t *testing.T) {
	r := run(t, nil)
	for _, first := range [][]byte{nil, {1}, make([]byte, 15), make([]byte, 17), bytes.Repeat([]byte{0xff}, 200)} {
		c := r.cmDial()
		if first != nil {
			c.Write(first)
		} else {
			c.CloseWrite()
		}
		if n, err := c.Read(make([]byte, 64)); n > 0 || err == nil {
			t.Errorf("an answer to %d octets", len(first))
		}
	}
	for _, m := range []abi.CMOpen{{Op: abi.CMOpChannel, Version: 2}, {Op: 9, Version: abi.CMVersion}} {
		a, err := abi.ParseCMOpened(umadAsk(t, r.cmDial(), m.Append(nil)))
		if err != nil || a.Error != uint32(unix.EINVAL) {
			t.Errorf("%+v: %v %+v", m, err, a)
		}
	}
	p := r.cmProgram()
	stranger := abi.CMCommand{Command: abi.CMCreateID, InLen: 24, OutLen: 4}
	ask := func(m abi.CMCommand) abi.CMAnswer {
		t.Helper()
		a, err := abi.ParseCMAnswer(umadAsk(t, p.commands, m.Append(nil)))
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if a := ask(stranger); a.Error != uint32(unix.EIO) {
		t.Errorf("without a token: %+v", a)
	}
	for i, m := range []abi.CMCommand{
		{Token: p.token, InLen: 513},
		{Token: p.token, InLen: 512, OptionLen: 1},
		{Token: p.token, InLen: 1 << 31, OptionLen: 1 << 31},
		{Token: p.token, Flags: 2},
		{Token: p.token, Command: 99, InLen: 8},
		{Token: p.token, Command: abi.CMDisconnect},
	} {
		if a := ask(m); a.Error != uint32(unix.EINVAL) {
			t.Errorf("%d: %+v", i, a)
		}
	}
	// More identifiers than there may be, and what was refused has a name.
	for i := range 1000 {
		p.create(uint64(i))
	}
	// A record of another length ends the connection, as it does not know where it is.
	if got := umadAsk(t, p.commands, make([]byte, 30)); len(got) != 0 {
		t.Errorf("an answer of %d octets", len(got))
	}
	c, err := r.node.reports.counters(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	refused := false
	for _, v := range c {
		refused = refused || v.Scope == api.ScopeNode && v.Instance == "rdmacm" && v.Name == "drop_malformed" &&
			v.Value == 1
	}
	if !refused {
		t.Error("what was refused was not counted")
	}
	r.cmProgram().create(1)
}

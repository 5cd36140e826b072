// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/host/rundir"
	"weft/internal/mgmt/umad"
	"weft/internal/proto/abi"
	"weft/internal/proto/condtest"
	"weft/internal/proto/mad"
	"weft/internal/verbs/hca"
)

// manageable starts a node with a subnet that an outside manager would run.
func manageable(t *testing.T) *running {
	t.Helper()
	return run(t, func(c *config.Config) { c.Fabric, c.SM, c.Store = true, config.SMExternal, config.StoreMemory })
}

func (r *running) umadDial() *net.UnixConn {
	r.t.Helper()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: filepath.Join(r.cfg.Dir, rundir.UmadSock),
		Net: "unixpacket"})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(limit))
	return c
}

// umadAsk sends one record and returns the answer; nil where the node hung up.
func umadAsk(t *testing.T, c *net.UnixConn, m []byte) []byte {
	t.Helper()
	if _, err := c.Write(m); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4096)
	n, err := c.Read(b)
	if err != nil && !errors.Is(err, io.EOF) || n < 0 {
		t.Fatal(err)
	}
	return b[:n]
}

func umadOpening(op abi.UmadOp, device string, flags uint32) abi.UmadOpen {
	m := abi.UmadOpen{Op: op, Version: abi.UmadVersion, Flags: flags, Port: 1}
	copy(m.Device[:], device)
	return m
}

// umadOpen opens a file of the device.
func (r *running) umadOpen(device string) (*net.UnixConn, abi.UmadOpened) {
	r.t.Helper()
	c := r.umadDial()
	a, err := abi.ParseUmadOpened(umadAsk(r.t.(*testing.T), c, umadOpening(abi.UmadOpOpen, device, 0).Append(nil)))
	if err != nil || a.Error != 0 {
		r.t.Fatalf("open: %v, %+v", err, a)
	}
	return c, a
}

func (r *running) umadControl(token [16]byte, number uint32, arg []byte) abi.UmadControlled {
	r.t.Helper()
	m := abi.UmadControl{Op: abi.UmadOpControl, Version: abi.UmadVersion, Token: token, Number: number,
		Length: uint32(len(arg))}
	copy(m.Arg[:], arg)
	a, err := abi.ParseUmadControlled(umadAsk(r.t.(*testing.T), r.umadDial(), m.Append(nil)))
	if err != nil {
		r.t.Fatal(err)
	}
	return a
}

// smpAgent registers for directed routes on queue pair 0.
func (r *running) smpAgent(token [16]byte) {
	r.t.Helper()
	reg := make([]byte, 28)
	copy(reg[20:], []byte{0, byte(mad.ClassSubnDR), 1})
	if a := r.umadControl(token, 3, nil); a.Error != 0 || a.HeaderLen != umad.HeaderLen {
		r.t.Fatalf("enable: %+v", a)
	}
	if a := r.umadControl(token, 1, reg); a.Error != 0 || binary.LittleEndian.Uint32(a.Arg[:]) != 0 {
		r.t.Fatalf("register: %+v", a)
	}
}

// smpGet queries an attribute along a directed route.
func smpGet(tid uint64, attr mad.AttributeID, modifier uint32, path ...uint8) []byte {
	s := mad.SMP{Header: mad.Header{BaseVersion: 1, MgmtClass: mad.ClassSubnDR, ClassVersion: 1,
		Method: mad.MethodGet, TransactionID: tid,
		AttributeID: attr, AttributeModifier: modifier}, HopCount: uint8(len(path)), DrSLID: 0xffff, DrDLID: 0xffff}
	copy(s.InitialPath[1:], path)
	h := umad.Header{TimeoutMS: 1000, LID: 0xffff}
	return s.Append(h.Append(nil, umad.HeaderLen))
}

func umadRead(t *testing.T, c *net.UnixConn) (h umad.Header, s mad.SMP) {
	t.Helper()
	b := make([]byte, 4096)
	n, err := c.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	if h.Parse(b[:n], umad.HeaderLen) != umad.OK {
		t.Fatalf("a record of %d bytes", n)
	}
	if n == umad.HeaderLen+mad.Len {
		s.Parse(b[umad.HeaderLen:n])
	} else if h.Status == umad.OK {
		t.Fatalf("a record of %d bytes", n)
	}
	return h, s
}

func TestUmadReachesAgents(t *testing.T) {
	t.Parallel()
	r := manageable(t)
	c, a := r.umadOpen(firstNative)
	if a.HeaderLen != 56 {
		t.Errorf("header of %d bytes", a.HeaderLen)
	}
	r.smpAgent(a.Token)
	for i, want := range []mad.NodeType{mad.NodeCA, mad.NodeSwitch, mad.NodeCA} {
		path := []uint8{1, 1}[:i]
		if _, err := c.Write(smpGet(uint64(i), mad.AttrNodeInfo, 0, path...)); err != nil {
			t.Fatal(err)
		}
		h, s := umadRead(t, c)
		var n mad.NodeInfo
		if n.Parse(s.Data[:]); h.Status != umad.OK || n.NodeType != want || uint32(s.TransactionID) != uint32(i) {
			t.Errorf("hop %d: %+v, %+v", i, h, n)
		}
	}
	// Port 2 leads to no node.
	c.Write(smpGet(9, mad.AttrNodeInfo, 0, 1, 2))
	if h, _ := umadRead(t, c); h.Status != umad.ETIMEDOUT {
		t.Errorf("%+v", h)
	}
	counted := func(name string) (v uint64) {
		list, err := api.Get(context.Background(), r.cli, api.ListCounters)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range list {
			if k.Instance == "umad" && k.Name == name {
				v = k.Value
			}
		}
		return v
	}
	if n := counted("sent"); n != 4 {
		t.Errorf("%d sent", n)
	}
	// What is too short to be answered is counted.
	c.Write(make([]byte, 70))
	eventually(t, "drop_malformed", func() bool { return counted("drop_malformed") == 1 })
}

func TestUmadRefuses(t *testing.T) {
	r := manageable(t)
	with := func(f func(*abi.UmadOpen)) []byte {
		m := umadOpening(abi.UmadOpOpen, firstNative, 0)
		f(&m)
		return m.Append(nil)
	}
	for name, c := range map[string]struct {
		m    []byte
		want umad.Errno
	}{
		"no device": {with(func(m *abi.UmadOpen) { m.Device = [64]byte{'x'} }), umad.ENODEV},
		"long name": {with(func(m *abi.UmadOpen) { copy(m.Device[:], strings.Repeat("x", 64)) }), umad.ENODEV},
		"Ethernet device": {with(func(m *abi.UmadOpen) { m.Device = [64]byte{}; copy(m.Device[:], "weft0") }),
			umad.ENODEV},
		"no port": {with(func(m *abi.UmadOpen) { m.Port = 2 }), umad.ENODEV},
		"version": {with(func(m *abi.UmadOpen) { m.Version = 2 }), umad.EINVAL},
		"flags":   {with(func(m *abi.UmadOpen) { m.Flags = 2 }), umad.EINVAL},
		"op":      {with(func(m *abi.UmadOpen) { m.Op = 9 }), umad.EINVAL},
	} {
		a, err := abi.ParseUmadOpened(umadAsk(t, r.umadDial(), c.m))
		if err != nil || umad.Errno(a.Error) != c.want || a.Token != [16]byte{} {
			t.Errorf("%s: %v, %+v", name, err, a)
		}
	}
	good := umadOpening(abi.UmadOpOpen, firstNative, 0).Append(nil)
	for n := 1; n < len(good); n++ {
		if n == abi.UmadControlSize {
			continue // judged below
		}
		if b := umadAsk(t, r.umadDial(), good[:n]); len(b) != 0 {
			t.Fatalf("%d bytes were answered with %d", n, len(b))
		}
	}
	_, a := r.umadOpen(firstNative)
	wrong := a.Token
	wrong[15] ^= 1
	if got := r.umadControl(wrong, 3, nil); umad.Errno(got.Error) != umad.EIO {
		t.Errorf("wrong token: %+v", got)
	}
	if got := r.umadControl(a.Token, 5, nil); umad.Errno(got.Error) != umad.ENOTTY {
		t.Errorf("unknown request: %+v", got)
	}
	m := abi.UmadControl{Op: abi.UmadOpControl, Version: abi.UmadVersion, Token: a.Token, Number: 3, Length: 41}
	if got, err := abi.ParseUmadControlled(umadAsk(t, r.umadDial(), m.Append(nil))); err != nil ||
		umad.Errno(got.Error) != umad.EINVAL {
		t.Errorf("length 41: %+v, %v", got, err)
	}
}

// TestUmadOfOtherUsers: a user that may use the node may not therefore manage the subnet.
func TestUmadOfOtherUsers(t *testing.T) {
	condtest.NeedRoot(t, "to be another user")
	const user = 12345
	r := run(t, func(c *config.Config) {
		c.Fabric, c.SM, c.Store, c.AllowUIDs = true, config.SMExternal, config.StoreMemory, []int{user}
	})
	dial := func() (c *net.UnixConn) {
		done := make(chan struct{})
		go func() { // on a thread that ends with it
			runtime.LockOSThread()
			defer close(done)
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), user, ^uintptr(0)); e != 0 {
				t.Error(e)
				return
			}
			var err error
			if c, err = net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: filepath.Join(r.cfg.Dir, rundir.UmadSock),
				Net: "unixpacket"}); err != nil {
				t.Error(err)
			}
		}()
		if <-done; c == nil {
			t.FailNow()
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(limit))
		return c
	}
	for dir := r.cfg.Dir; dir != "/"; dir = filepath.Dir(dir) {
		if i, err := os.Stat(dir); err != nil || i.Mode().Perm()&1 == 0 {
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	c := dial()
	a, err := abi.ParseUmadOpened(umadAsk(t, c, umadOpening(abi.UmadOpOpen, firstNative, 0).Append(nil)))
	if err != nil || a.Error != 0 {
		t.Fatalf("open: %v, %+v", err, a)
	}
	r.smpAgent(a.Token)
	m := smpGet(7, mad.AttrNodeInfo, 0)
	for method, want := range map[mad.Method]umad.Errno{mad.MethodGet: umad.OK, mad.MethodSet: umad.EPERM} {
		m[len(m)-mad.Len+3] = byte(method)
		if _, err := c.Write(m); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 4096)
		if n, err := c.Read(b); err != nil || n < umad.HeaderLen {
			t.Fatal(n, err)
		}
		var h umad.Header
		if h.Parse(b, umad.HeaderLen); h.Status != want {
			t.Errorf("%v: status %d, want %d", method, h.Status, want)
		}
	}
	if a, err = abi.ParseUmadOpened(umadAsk(t, dial(), umadOpening(abi.UmadOpIsSM, firstNative,
		0).Append(nil))); err != nil || umad.Errno(a.Error) != umad.EPERM {
		t.Errorf("issm: %v, %+v", err, a)
	}
}

// A request finds all that was written to the file before it.
func TestUmadControlComesAfterRecords(t *testing.T) {
	r := manageable(t)
	for range 20 {
		c, a := r.umadOpen(firstNative)
		r.smpAgent(a.Token)
		for i := range 8 {
			c.Write(smpGet(uint64(i), mad.AttrNodeInfo, 0))
		}
		if got := r.umadControl(a.Token, 2, make([]byte, 4)); got.Error != 0 {
			t.Fatalf("unregister: %+v", got)
		}
		// None came too late: those would be returned with EIO.
		c.Write(smpGet(99, mad.AttrNodeInfo, 0))
		for {
			h, _ := umadRead(t, c)
			if h.Status == umad.OK {
				continue
			}
			b := make([]byte, 4)
			if h.Status != umad.EIO {
				t.Fatalf("%+v", h)
			}
			c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
			if n, err := c.Read(b); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("more: %d, %v", n, err)
			}
			break
		}
		c.Close()
	}
}

func (r *running) capMask() string {
	b, err := os.ReadFile(filepath.Join(r.cfg.Dir, "tree/sys/class/infiniband", firstNative, "ports/1/cap_mask"))
	if err != nil && !errors.Is(err, os.ErrNotExist) { // the tree is exchanged under our feet
		r.t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func TestUmadIsSM(t *testing.T) {
	r := manageable(t)
	const plain, sm = "0x0651c808", "0x0651c80a"
	if got := r.capMask(); got != plain {
		t.Fatalf("capability mask %s", got)
	}
	open := func(c *net.UnixConn, flags uint32) uint32 {
		a, err := abi.ParseUmadOpened(umadAsk(t, c, umadOpening(abi.UmadOpIsSM, firstNative, flags).Append(nil)))
		if err != nil {
			t.Fatal(err)
		}
		return a.Error
	}
	first := r.umadDial()
	if e := open(first, 0); e != 0 {
		t.Fatalf("open: %d", e)
	}
	eventually(t, "IsSM in the files", func() bool { return r.capMask() == sm })
	if e := open(r.umadDial(), abi.UmadNonblock); umad.Errno(e) != umad.EAGAIN {
		t.Errorf("a second one: %d", e)
	}
	second, got := r.umadDial(), make(chan uint32)
	go func() { got <- open(second, 0) }()
	select {
	case e := <-got:
		t.Fatalf("two have it: %d", e)
	case <-time.After(20 * time.Millisecond):
	}
	first.Close()
	if e := <-got; e != 0 {
		t.Errorf("the one that waited: %d", e)
	}
	second.Close()
	eventually(t, "no IsSM in the files", func() bool { return r.capMask() == plain })
}

func TestUmadOfRemovedFunction(t *testing.T) {
	r := manageable(t)
	if _, err := r.node.editor.add("x", hca.DefaultLimits); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"umad0": firstNative, "umad1": "x", "issm1": "x"} {
		b, err := os.ReadFile(filepath.Join(r.cfg.Dir, "tree/sys/class/infiniband_mad", name, "ibdev"))
		if err != nil || strings.TrimSpace(string(b)) != want {
			t.Errorf("%s is of %q, %v", name, b, err)
		}
	}
	c, a := r.umadOpen("x")
	r.smpAgent(a.Token)
	if err := r.node.editor.remove("x"); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 10)); !errors.Is(err, io.EOF) {
		t.Errorf("read: %d, %v", n, err)
	}
	if got := r.umadControl(a.Token, 3, nil); umad.Errno(got.Error) != umad.EIO {
		t.Errorf("control: %+v", got)
	}
}

// A program that does not read loses records, and holds up nothing else.
func TestUmadReaderThatDoesNotRead(t *testing.T) {
	r := manageable(t)
	c, a := r.umadOpen(firstNative)
	r.smpAgent(a.Token)
	other, b := r.umadOpen(firstNative)
	r.smpAgent(b.Token)
	rec := smpGet(0, mad.AttrNodeInfo, 0)
	dropped := func() bool {
		list, err := api.Get(context.Background(), r.cli, api.ListCounters)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range list {
			if k.Instance == "umad" && k.Name == "drop_reader_full" {
				return k.Value > 0
			}
		}
		return false
	}
	for i := 0; ; i++ {
		binary.BigEndian.PutUint32(rec[umad.HeaderLen+12:], uint32(i))
		if _, err := c.Write(rec); err != nil {
			t.Fatal(err)
		}
		if i%1000 == 999 && dropped() {
			break
		}
		if i > 1_000_000 {
			t.Fatal("the node holds everything")
		}
	}
	other.Write(smpGet(77, mad.AttrNodeInfo, 0))
	if h, s := umadRead(t, other); h.Status != umad.OK || uint32(s.TransactionID) != 77 {
		t.Errorf("%+v, %+v", h, s.Header)
	}
	if h, s := umadRead(t, c); h.Status != umad.OK || uint32(s.TransactionID) != 0 ||
		!bytes.Equal(s.Data[:2], []byte{1, 1}) {
		t.Errorf("the first record: %+v, %+v", h, s.Header)
	}
}

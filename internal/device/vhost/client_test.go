// SPDX-License-Identifier: Apache-2.0

package vhost_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"weft/internal/device/vhost"
	"weft/internal/device/vhost/vhosttest"
	"weft/internal/proto/abi"
)

// TestDial: a server that connects to its front-end's socket reconnects after every end of a session,
// by either side, and leaks nothing.
func TestDial(t *testing.T) {
	dir, err := os.MkdirTemp("", "vhost")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "qemu.sock")
	ends, made := make(chan error, 64), make(chan *fake, 64)
	s := vhost.Dial(path, vhost.Config{
		New: func(s *vhost.Session) (vhost.Device, error) {
			f, err := newFake(s)
			if err != nil {
				return vhost.Device{}, err
			}
			made <- f
			return f.parts(), nil
		},
		OnEnd: func(_ *vhost.Session, reason error) { ends <- reason },
	})
	defer s.Close()
	if s.Waiting() == nil {
		t.Error("no front-end, and it does not wait")
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	accept := func() *vhosttest.Front {
		t.Helper()
		ln.SetDeadline(time.Now().Add(vhosttest.Limit))
		c, err := ln.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		<-made
		return &vhosttest.Front{Conn: c}
	}
	before := 0
	for round := range 7 {
		f := accept()
		if _, err := f.GetU64(abi.ReqGetFeatures); err != nil {
			t.Fatal(err)
		}
		if s.Sessions() != 1 || s.Waiting() != nil {
			t.Errorf("%d sessions, waiting: %v", s.Sessions(), s.Waiting())
		}
		want := vhost.Gone
		if round%2 == 0 {
			want = vhost.BadHeader
			f.Send(abi.ReqGetFeatures, 0, nil)
		} else {
			f.Close()
		}
		select {
		case reason := <-ends:
			if r, ok := reason.(interface{ Unwrap() []error }); reason != want && (!ok || r.Unwrap()[0] != want) {
				t.Errorf("ended: %v, want %v", reason, want)
			}
		case <-time.After(vhosttest.Limit):
			t.Fatal("the session does not end")
		}
		f.Close()
		if n := descriptors(t); round == 0 {
			before = n
		} else if n > before+3 { // the next connection may be there already
			t.Errorf("round %d: %d descriptors, %d at first", round, n, before)
		}
	}
	// It ends while a session runs.
	f := accept()
	defer f.Close()
	ln.Close()
	s.Close()
	if err := <-ends; err.Error() != vhost.Shutdown.Error() {
		t.Errorf("ended: %v", err)
	}
}

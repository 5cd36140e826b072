// SPDX-License-Identifier: Apache-2.0

package vhost_test

import (
	"encoding/hex"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/device/vhost"
	"weft/internal/device/vhost/vhosttest"
	"weft/internal/proto/abi"
)

// reads returns what is in a socket, and whether its other end is closed.
func reads(t *testing.T, fd int) (text string, eof bool) {
	t.Helper()
	var b [1 << 20]byte
	n, err := unix.Read(fd, b[:])
	if err != nil && err != unix.EAGAIN {
		t.Fatal(err)
	}
	return hex.EncodeToString(b[:max(n, 0)]), n == 0 && err == nil
}

// TestBackendChannel: the device sends a message to a front-end that gave it a channel for each change of the
// configuration and if it needs a reset. It never blocks.
func TestBackendChannel(t *testing.T) {
	socket := newSocket(t)
	f, err := vhosttest.Dial(socket.path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	pair := func() (p [2]int) {
		t.Helper()
		p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		unix.SetNonblock(p[0], true) // the device's end blocks
		t.Cleanup(func() { unix.Close(p[0]) })
		return p
	}
	give := func(f *vhosttest.Front, p [2]int) error {
		defer unix.Close(p[1])
		return f.Do(abi.ReqSetBackendReqFD, nil, p[1])
	}
	if p, err := f.GetU64(abi.ReqGetProtocolFeatures); err != nil || p&(1<<abi.ProtoBackendReq) == 0 {
		t.Fatalf("protocol features %#x, %v", p, err)
	}
	first := pair()
	proto := uint64(1<<abi.ProtoReplyAck | 1<<abi.ProtoStatus | 1<<abi.ProtoResetDevice)
	if err := f.Do(abi.ReqSetProtocolFeatures, vhosttest.U64(proto)); err != nil {
		t.Fatal(err)
	}
	if err := give(f, first); err != unix.EOPNOTSUPP {
		t.Errorf("a channel that was not negotiated: %v", err)
	}
	if err := f.Do(abi.ReqSetProtocolFeatures, vhosttest.U64(proto|1<<abi.ProtoBackendReq)); err != nil {
		t.Fatal(err)
	}
	dev := <-socket.made
	dev.s.ConfigChanged() // there is no channel yet
	if first = pair(); give(f, first) != nil {
		t.Fatal("refused")
	}
	const message = "020000000100000000000000" // CONFIG_CHANGE_MSG, version 1, no payload
	if got, eof := reads(t, first[0]); got != "" || eof {
		t.Errorf("at once %q, %v", got, eof)
	}
	dev.s.ConfigChanged()
	if got, _ := reads(t, first[0]); got != message {
		t.Errorf("a change: %q", got)
	}
	// NEEDS_RESET stays until a reset, of either kind.
	for _, reset := range []func() error{
		func() error { return f.Do(abi.ReqSetStatus, vhosttest.U64(0)) },
		func() error { return f.Do(abi.ReqResetDevice, nil) },
	} {
		if err := f.Do(abi.ReqSetFeatures, vhosttest.U64(1<<abi.FeatureVersion1|1<<abi.FeatureProtocol)); err != nil {
			t.Fatal(err)
		}
		if err := f.Do(abi.ReqSetStatus, vhosttest.U64(0x0f)); err != nil {
			t.Fatal(err)
		}
		dev.s.NeedsReset()
		if got, _ := reads(t, first[0]); got != message {
			t.Errorf("needs a reset: %q", got)
		}
		status := func(want uint64) {
			t.Helper()
			if st, err := f.GetU64(abi.ReqGetStatus); st != want || err != nil {
				t.Errorf("status %#x, %v, want %#x", st, err, want)
			}
		}
		status(0x4f)
		if err := f.Do(abi.ReqSetStatus, vhosttest.U64(0x0f)); err != nil {
			t.Fatal(err)
		}
		status(0x4f)
		if err := reset(); err != nil {
			t.Fatal(err)
		}
		status(0)
	}
	// Another channel replaces the first, which the device closes.
	second := pair()
	if give(f, second) != nil {
		t.Fatal("refused")
	}
	if _, eof := reads(t, first[0]); !eof {
		t.Error("the first channel stays open")
	}
	// A full channel, and one without a reader, do no harm.
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 100000 {
			dev.s.ConfigChanged()
		}
	}()
	select {
	case <-done:
	case <-time.After(vhosttest.Limit):
		t.Fatal("a full channel blocks")
	}
	if got, _ := reads(t, second[0]); len(got)%len(message) != 0 || got[:len(message)] != message {
		t.Errorf("%d digits of a full channel", len(got))
	}
	third := pair()
	if give(f, third) != nil {
		t.Fatal("refused")
	}
	fourth := pair()
	unix.Shutdown(third[0], unix.SHUT_RDWR)
	dev.s.ConfigChanged()
	if give(f, fourth) != nil {
		t.Fatal("refused")
	}
	f.Close()
	if err := socket.settled(t); err != vhost.Gone {
		t.Errorf("ended: %v", err)
	}
	if _, eof := reads(t, fourth[0]); !eof {
		t.Error("the channel stays open after the session")
	}
	dev.s.ConfigChanged()
	// Files of other kinds may block.
	datagrams, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(datagrams[0])
	defer unix.Close(datagrams[1])
	for _, fd := range []int{vhosttest.Eventfd(t), datagrams[0]} {
		f, err := vhosttest.Dial(socket.path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := f.Do(abi.ReqSetProtocolFeatures, vhosttest.U64(proto|1<<abi.ProtoBackendReq)); err != nil {
			t.Fatal(err)
		}
		if err := f.Do(abi.ReqSetBackendReqFD, nil, fd); !vhosttest.Closed(err) {
			t.Errorf("%v", err)
		}
		if err := socket.settled(t); !errors.Is(err, vhost.BadKind) {
			t.Errorf("ended: %v", err)
		}
		<-socket.made
	}
}

// SPDX-License-Identifier: Apache-2.0

package vhost_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"weft/internal/device/vhost"
	"weft/internal/device/vhost/vhosttest"
	"weft/internal/device/virtio/virtiotest"
	"weft/internal/proto/abi"
	"weft/internal/proto/condtest"
)

func hello(t *testing.T, path string) (*vhosttest.Front, error) {
	t.Helper()
	f, err := vhosttest.Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	p, err := f.Get(abi.ReqHello, abi.Hello{ABI: abi.Version}.Append(nil))
	if err == nil && len(p) == 8 {
		err = unix.Errno(p[0])
	}
	return f, err
}

// TestSessionQuota: a refused session gets the reason, does not affect others, and succeeds once there
// is room.
func TestSessionQuota(t *testing.T) {
	for _, c := range []struct {
		limits vhost.Limits
		quota  vhost.Quota
		want   error
	}{
		{vhost.Limits{Sessions: 2}, vhost.SessionsOfAll, unix.ENOSPC},
		{vhost.Limits{Sessions: 100, UserSessions: 2}, vhost.SessionsOfUser, unix.EUSERS},
		{vhost.Limits{Sessions: 3, UserSessions: 2,
			Free: func(uid uint32) bool { return uid == uint32(os.Getuid()) }}, vhost.SessionsOfAll, unix.ENOSPC},
	} {
		t.Run(c.quota.Name(), func(t *testing.T) {
			d := newLimitedSocket(t, c.limits)
			var first *vhosttest.Front
			n := 2
			if c.limits.Free != nil {
				n = 3
			}
			for range n {
				f, err := hello(t, d.path)
				if err != nil {
					t.Fatal(err)
				}
				first = f
			}
			if _, err := hello(t, d.path); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			condtest.Until(t, "a refusal is counted", func() bool { return d.Refusals()[c.quota.Name()] == 1 },
				func() any { return d.Refusals() })
			first.Close()
			d.settled(t)
			if _, err := hello(t, d.path); err != nil {
				t.Errorf("after one left: %v", err)
			}
		})
	}
}

// TestSilentRefused: refused connections that send nothing are closed.
func TestSilentRefused(t *testing.T) {
	d := newLimitedSocket(t, vhost.Limits{Sessions: 1})
	hello(t, d.path)
	before := descriptors(t)
	for range 64 {
		f, err := vhosttest.Dial(d.path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Recv(abi.ReqHello); !vhosttest.Closed(err) {
			t.Fatalf("not closed: %v", err)
		}
		f.Close()
		if d.Refusals()["sessions"] > 3 { // each may have waited for its time
			break
		}
	}
	if n := descriptors(t); n > before+1 {
		t.Errorf("%d descriptors, %d before", n, before)
	}
}

// TestDescriptorQuota: a session that passes too many descriptors gets an error and continues; closed
// descriptors no longer count.
func TestDescriptorQuota(t *testing.T) {
	for _, c := range []struct {
		quota  vhost.Quota
		limits vhost.Limits
		want   error
	}{
		{vhost.DescriptorsOfSession, vhost.Limits{SessionDescriptors: 6, UserDescriptors: 100}, unix.EMFILE},
		{vhost.DescriptorsOfUser, vhost.Limits{SessionDescriptors: 100, UserDescriptors: 6, Descriptors: 100},
			unix.EMFILE},
		{vhost.DescriptorsOfAll, vhost.Limits{SessionDescriptors: 100, UserDescriptors: 100, Descriptors: 6},
			unix.ENFILE},
	} {
		t.Run(c.quota.Name(), func(t *testing.T) {
			socket := newLimitedSocket(t, c.limits)
			for range 5 { // each leaves everything behind
				// memory, doorbell: one kept
				d := vhosttest.NewDriver(t, socket.path, vhosttest.Options{MemSize: 1 << 18, NoRings: true})
				set := func(i int) error {
					r := virtiotest.NewRing(d.Mem, 4, false)
					m := abi.SetRing{Index: uint32(3 + i), Num: 4, Desc: r.Desc, Avail: r.Avail, Used: r.Used,
						Flags: abi.RingCall, CallValue: 1}
					return d.Do(abi.ReqSetRing, m.Append(nil), vhosttest.Eventfd(t))
				}
				before := socket.Refusals()[c.quota.Name()]
				for i := range 5 {
					if err := set(i); err != nil {
						t.Fatalf("ring %d: %v", i, err)
					}
				}
				if err := set(5); !errors.Is(err, c.want) {
					t.Errorf("one more: %v, want %v", err, c.want)
				}
				if n := socket.Refusals()[c.quota.Name()]; n != before+1 {
					t.Errorf("%d refusals, want %d", n, before+1)
				}
				if err := d.Do(abi.ReqStopRing, abi.StopRing{Index: 3}.Append(nil)); err != nil {
					t.Fatal(err)
				}
				if err := set(5); err != nil {
					t.Errorf("after one was given back: %v", err)
				}
				d.Close()
				socket.settled(t)
			}
		})
	}
}

// TestManyDescriptors: a message brings as many as a memory table has regions,
// and no more stay open.
func TestManyDescriptors(t *testing.T) {
	d := newSocket(t)
	f, _ := d.enter(t, fresh)
	fd := vhosttest.Eventfd(t)
	fds := make([]int, 33)
	for i := range fds {
		fds[i] = fd
	}
	before := descriptors(t)
	f.Send(abi.ReqGetFeatures, abi.VUVersion, nil, fds...)
	if err := d.settled(t); !errors.Is(err, vhost.BadDescriptors) {
		t.Errorf("got %v", err)
	}
	if n := descriptors(t); n > before {
		t.Errorf("%d descriptors, %d before", n, before)
	}
}

// TestSharedQuota: what one socket gave, another that shares its accounts does
// not have.
func TestSharedQuota(t *testing.T) {
	d := newLimitedSocket(t, vhost.Limits{Sessions: 1})
	path := filepath.Join(t.TempDir(), "second.sock")
	second, err := vhost.Listen(path, 0o600, vhost.Config{Share: d.Server})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { second.Close() })
	if _, err := hello(t, d.path); err != nil {
		t.Fatal(err)
	}
	if _, err := hello(t, path); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got %v, want %v", err, unix.ENOSPC)
	}
}

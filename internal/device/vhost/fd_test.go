// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"encoding/binary"
	"errors"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/proto/condtest"
)

// waitLimit bounds every wait, also on a machine that does much else.
const waitLimit = time.Minute

// TestCallNeverBlocks lets a client make its end of a full pipe blocking: the
// node's write must come back all the same.
func TestCallNeverBlocks(t *testing.T) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(p[0])
	client, err := unix.Dup(p[1]) // shares the opening, as a descriptor that was passed does
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(client)
	c, err := newCall(p[1], 7)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if err := unix.SetNonblock(client, false); err != nil {
		t.Fatal(err)
	}
	done := make(chan Outcome)
	go func() {
		for {
			if o := c.Write(); o != Sent {
				done <- o
				return
			}
		}
	}()
	select {
	case o := <-done:
		if o != Again {
			t.Errorf("a full pipe is %v, want Again", o)
		}
	case <-time.After(waitLimit):
		t.Fatal("the write blocks")
	}
}

// TestFullEventfd fills an eventfd and makes it blocking: a notification that
// has not been read counts as sent, and a kick is read without waiting.
func TestFullEventfd(t *testing.T) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	client, err := unix.Dup(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(client)
	c, err := newCall(fd, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if _, err := unix.Write(client, []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(client, false); err != nil {
		t.Fatal(err)
	}
	done := make(chan Outcome, 1)
	go func() {
		done <- c.Write()
		k := Kick{fd}
		k.Clear()
		k.Clear() // empty now: must not wait
		close(done)
	}()
	deadline := time.After(waitLimit)
	for range 2 {
		select {
		case o, more := <-done:
			if more && o != Sent {
				t.Errorf("a full eventfd is %v, want Sent", o)
			}
		case <-deadline:
			t.Fatal("the lane would block")
		}
	}
}

// flip makes a descriptor blocking again and again, as fast as it can, until
// the returned function is called.
func flip(fd int) (stop func()) {
	end, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-end:
				return
			default:
				unix.SetNonblock(fd, false)
			}
		}
	}()
	return func() { close(end); <-done }
}

// TestEventfdMadeBlocking: a client fills its eventfd at any moment, so that
// also a look before the write helps nothing.
func TestEventfdMadeBlocking(t *testing.T) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	client, err := unix.Dup(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(client)
	c, err := newCall(fd, 1)
	if err != nil {
		t.Fatal(err)
	}
	if c.signal == nil {
		t.Fatal(SharedCalls())
	}
	if err := unix.SetNonblock(client, false); err != nil {
		t.Fatal(err)
	}
	full := []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	if _, err := unix.Write(client, full); err != nil {
		t.Fatal(err)
	}
	done := make(chan Outcome, 1)
	go func() {
		// What Write does once it has looked and found room.
		for range 3 * aioDepth {
			if o := c.signal.signal(); o != Sent {
				done <- o
				return
			}
		}
		done <- Sent
	}()
	select {
	case o := <-done:
		if o != Sent {
			t.Errorf("a full eventfd is %v, want Sent", o)
		}
	case <-time.After(waitLimit):
		t.Fatal("the notification waits")
	}
	var v [8]byte
	if n, err := unix.Read(client, v[:]); n != 8 || err != nil {
		t.Fatalf("%d bytes, %v", n, err)
	}
	for range 1000 { // counts exactly where there is room
		c.Write()
	}
	if n, err := unix.Read(client, v[:]); n != 8 || err != nil || binary.NativeEndian.Uint64(v[:]) != 1000 {
		t.Errorf("after 1000 notifications: %d bytes, %v, count %d", n, err, binary.NativeEndian.Uint64(v[:]))
	}
	c.close()
}

// foreignPipe makes the call of a pipe of another user, which the node may not open anew. client is the other user's
// end.
func foreignPipe(t *testing.T) (c *Call, client int, err error) {
	t.Helper()
	condtest.NeedRoot(t, "to be another user for a moment")
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(p[0]) })
	if client, err = unix.Dup(p[1]); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(client) })
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with the goroutine
		if _, err := unix.SetfsuidRetUid(65534); err != nil {
			made <- err
			return
		}
		var err error
		c, err = newCall(p[1], 7)
		made <- err
	}()
	if err = <-made; err == nil {
		t.Cleanup(c.close)
	} else if _, e := unix.FcntlInt(uintptr(p[1]), unix.F_GETFD, 0); e != unix.EBADF {
		t.Errorf("the descriptor of a pipe that is refused stays open: %v", e)
	}
	return c, client, err
}

// TestForeignPipe: the node may not open another user's pipe anew; its writes
// come back all the same. A kernel before Linux 6.4 cannot do that, and the pipe is refused.
func TestForeignPipe(t *testing.T) {
	c, client, err := foreignPipe(t)
	if !pipesNowait() {
		if !errors.Is(err, errShared) {
			t.Errorf("a kernel without writes to pipes that do not wait: %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if !c.shared {
		t.Fatal("the pipe was opened anew")
	}
	defer flip(client)()
	done := make(chan Outcome, 1)
	go func() {
		for range 1 << 17 { // more than any pipe takes
			if o := c.Write(); o != Sent {
				done <- o
				return
			}
		}
		done <- Sent
	}()
	select {
	case o := <-done:
		if o != Again {
			t.Errorf("a full pipe is %v, want Again", o)
		}
	case <-time.After(waitLimit):
		t.Fatal("the write waits")
	}
}

// TestForeignPipeOfOldKernel: the node has a kernel before Linux 6.4, whichever this one is.
func TestForeignPipeOfOldKernel(t *testing.T) {
	kernel := pipesNowait
	pipesNowait = func() bool { return false }
	defer func() { pipesNowait = kernel }()
	if _, _, err := foreignPipe(t); !errors.Is(err, errShared) {
		t.Errorf("a pipe of another user is accepted: %v", err)
	}
}

func TestCallDoesNotAllocate(t *testing.T) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	c, err := newCall(fd, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if n := testing.AllocsPerRun(3*aioDepth, func() { c.Write() }); n != 0 {
		t.Errorf("a notification allocates %v times", n)
	}
}

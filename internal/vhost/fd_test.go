// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

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
	case <-time.After(10 * time.Second):
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
	deadline := time.After(10 * time.Second)
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

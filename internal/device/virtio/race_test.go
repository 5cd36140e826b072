// SPDX-License-Identifier: Apache-2.0

package virtio_test

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"weft/internal/device/virtio"
	"weft/internal/device/virtio/virtiotest"
)

// TestNoLostKick: a driver and a device that sleep whenever they may never
// wait for each other for ever, and no element is seen before its bytes.
func TestNoLostKick(t *testing.T) {
	const total = 20000
	for _, event := range []bool{false, true} {
		t.Run(fmt.Sprintf("event index %v", event), func(t *testing.T) {
			m, r, q := setup(t, 8, event)
			slots := m.Alloc(8*8, 8)
			kick, call := make(chan struct{}, 1), make(chan struct{}, 1)
			poke := func(c chan struct{}) {
				select {
				case c <- struct{}{}:
				default:
				}
			}
			done := make(chan error, 1)
			go func() { // the device
				for n := uint64(0); n < total; {
					q.DisableKick()
					e, ok, err := q.Next(false)
					if err != nil {
						done <- err
						return
					}
					if ok {
						if got := binary.LittleEndian.Uint64(e.Data); got != n {
							done <- fmt.Errorf("element %d carries %d", n, got)
							return
						}
						n++
						q.PushUsed(e.Head, 0)
						if n%3 == 0 || n == total {
							if q.Publish() {
								poke(call)
							}
						}
						continue
					}
					if q.Publish() {
						poke(call)
					}
					if pending, err := q.EnableKick(); err != nil {
						done <- err
						return
					} else if !pending {
						<-kick
					}
				}
				done <- nil
			}()
			reaped := 0
			reap := func() (any bool) {
				for {
					if _, _, ok := r.Reap(); !ok {
						return any
					}
					reaped++
					any = true
				}
			}
			timeout := time.After(60 * time.Second)
			for sent := uint64(0); reaped < total; {
				posted := false
				for r.Free() > 0 && sent < total {
					i := r.Next()
					gpa := slots + 8*uint64(i)
					binary.LittleEndian.PutUint64(m.At(gpa, 8), sent)
					old := uint16(sent)
					r.Add(bufs(virtiotest.Buf{GPA: gpa, Len: 8}), nil)
					r.Publish()
					sent++
					if event && uint16(sent)-r.AvailEvent()-1 < uint16(sent)-old || !event && r.WantsKick() {
						poke(kick)
					}
					posted = true
				}
				if reap() || posted {
					continue
				}
				r.SetUsedEvent(uint16(reaped))
				r.Fence()
				if reap() {
					continue
				}
				select {
				case <-call:
				case err := <-done:
					if err != nil {
						t.Fatal(err)
					}
					reap()
					if reaped != total {
						t.Fatalf("%d of %d", reaped, total)
					}
					return
				case <-timeout:
					t.Fatalf("stuck: %d sent, %d reaped", sent, reaped)
				}
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestNoLostDoorbell is the same for the doorbell: several rings, one sleeper.
func TestNoLostDoorbell(t *testing.T) {
	const total, rings = 20000, 200
	m := virtiotest.NewMemory(t, 1<<20)
	p := virtiotest.NewDoorbell(m, rings)
	d, err := virtio.NewDoorbell(m, p.GPA, p.NBits)
	if err != nil {
		t.Fatal(err)
	}
	counts := m.Alloc(4*rings, 4) // what stands for the rings' indices
	kick, done := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(done)
		seen := make([]uint32, rings)
		var list []uint32
		for sum := uint32(0); sum < total; {
			list = d.Rings(list[:0])
			for _, i := range list {
				v := m.LoadWord(counts + 4*uint64(i))
				sum += v - seen[i]
				seen[i] = v
			}
			if len(list) > 0 || sum == total {
				continue
			}
			if !d.Sleep() {
				<-kick
			}
			d.Wake()
		}
	}()
	for n := range uint32(total) {
		i := n * 7 % rings
		a := counts + 4*uint64(i)
		m.StoreWord(a, m.LoadWord(a)+1)
		if p.Ring(i) {
			select {
			case kick <- struct{}{}:
			default:
			}
		}
	}
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		t.Fatal("stuck")
	}
}

// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"weft/internal/mgmt/store"
	"weft/internal/proto/condtest"
)

// operation is what a client did to the one list that all clients append to.
type operation struct {
	began, ended time.Duration
	append       int   // the number that was appended; 0: a read
	list         []int // of a read
	acknowledged bool  // otherwise the append may have been executed or not, or is executed later
}

// verify checks a history for linearisability, given the list at its end: every list is appended to only, so that what
// a read returns is a prefix of the last list, and contains what was acknowledged before it began.
func verify(history []operation, last []int) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	at := map[int]int{}
	for i, n := range last {
		if _, twice := at[n]; twice {
			fault("%d is in the list twice", n)
		}
		at[n] = i + 1
	}
	asked := map[int]bool{}
	// An operation that ended shows how long the list was then, at least.
	type mark struct {
		when   time.Duration
		length int
	}
	var marks []mark
	for _, o := range history {
		switch {
		case o.append != 0:
			asked[o.append] = true
			if !o.acknowledged {
				continue
			}
			if at[o.append] == 0 {
				fault("%d was acknowledged and is lost", o.append)
			}
			marks = append(marks, mark{o.ended, at[o.append]})
		case len(o.list) > len(last) || !slices.Equal(o.list, last[:len(o.list)]):
			fault("a read at %v returned %v, which is no beginning of the list", o.ended, o.list)
		default:
			marks = append(marks, mark{o.ended, len(o.list)})
		}
	}
	for _, n := range last {
		if !asked[n] {
			fault("%d was never appended", n)
		}
	}
	slices.SortFunc(marks, func(a, b mark) int { return int(a.when - b.when) })
	for i := 1; i < len(marks); i++ {
		marks[i].length = max(marks[i].length, marks[i-1].length)
	}
	for _, o := range history {
		i, _ := slices.BinarySearchFunc(marks, o.began, func(m mark, t time.Duration) int { return int(m.when - t) })
		if i == 0 || marks[i-1].when >= o.began {
			continue
		}
		least := marks[i-1].length
		if o.append == 0 && len(o.list) < least {
			fault("a read that began at %v returned %d numbers, %d were there before", o.began, len(o.list), least)
		}
		if where := at[o.append]; o.append != 0 && where != 0 && where <= least {
			fault("%d was appended at %v, and stands before what was there", o.append, o.began)
		}
	}
	return faults
}

func TestVerify(t *testing.T) {
	read := func(began, ended time.Duration, list ...int) operation {
		return operation{began: began, ended: ended, list: list}
	}
	add := func(began, ended time.Duration, n int, ok bool) operation {
		return operation{began: began, ended: ended, append: n, acknowledged: ok}
	}
	for _, tt := range []struct {
		about   string
		history []operation
		last    []int
		faults  int
	}{
		{"good", []operation{add(0, 1, 1, true), read(2, 3, 1), add(2, 4, 2, true), read(5, 6, 1, 2)}, []int{1, 2}, 0},
		{"unknown and done", []operation{add(0, 1, 1, false)}, []int{1}, 0},
		{"unknown and not done", []operation{add(0, 1, 1, false)}, nil, 0},
		{"unknown and done late", []operation{add(0, 1, 1, false), add(2, 3, 2, true)}, []int{2, 1}, 0},
		{"at the same time", []operation{add(0, 5, 1, true), add(1, 4, 2, true), read(2, 3)}, []int{2, 1}, 0},
		{"lost", []operation{add(0, 1, 1, true)}, nil, 1},
		{"twice", []operation{add(0, 1, 1, true)}, []int{1, 1}, 1},
		{"from nowhere", nil, []int{7}, 1},
		{"undone", []operation{add(0, 1, 1, false), read(2, 3, 1), add(4, 5, 2, true)}, []int{2}, 1},
		{"stale read", []operation{add(0, 1, 1, true), read(2, 3)}, []int{1}, 1},
		{"stale read after a read", []operation{add(0, 9, 1, true), read(2, 3, 1), read(4, 5)}, []int{1}, 1},
		{"out of order", []operation{add(0, 1, 1, true), add(2, 3, 2, true)}, []int{2, 1}, 1},
	} {
		if got := verify(tt.history, tt.last); len(got) != tt.faults {
			t.Errorf("%s: %q, want %d faults", tt.about, got, tt.faults)
		}
	}
}

// TestNothingAcknowledgedIsLost has clients on all members append to one list, by compare and set, while members die,
// return and are cut off from each other.
func TestNothingAcknowledgedIsLost(t *testing.T) {
	events, seed := 6, uint64(1)
	if condtest.Soak() {
		events, seed = 300, uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 2))
	f := newFabric(t)
	f.open("a")
	f.open("b", "a")
	f.open("c", "a")
	f.roles("a:voter b:voter c:voter")

	var mu sync.Mutex // members of f, and the history
	var history []operation
	began := time.Now()
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	names := []string{"a", "b", "c"}
	for i, name := range names {
		for k := range 2 {
			n := 0
			rnd := rand.New(rand.NewPCG(seed, uint64(10+2*i+k)))
			clients.Go(func() {
				for ctx.Err() == nil {
					mu.Lock()
					m := f.members[name]
					mu.Unlock()
					if m == nil {
						time.Sleep(5 * time.Millisecond)
						continue
					}
					o := operation{began: time.Since(began)}
					call, end := context.WithTimeout(t.Context(), time.Second)
					var err error
					if rnd.IntN(3) == 0 {
						o.list, err = readList(call, m)
					} else {
						n++
						o.append = n*100 + 10*i + k + 1
						err = store.Edit(call, m, "list", func(v []byte) ([]byte, error) {
							var list []int
							if v != nil {
								if err := json.Unmarshal(v, &list); err != nil {
									return nil, err
								}
							}
							return json.Marshal(append(list, o.append))
						})
					}
					end()
					o.ended, o.acknowledged = time.Since(began), err == nil
					if err == nil || o.append != 0 {
						mu.Lock()
						history = append(history, o)
						mu.Unlock()
					}
					time.Sleep(time.Duration(rnd.IntN(4000)) * time.Microsecond)
				}
			})
		}
	}
	for range events {
		name := names[rnd.IntN(len(names))]
		time.Sleep(time.Duration(100+rnd.IntN(400)) * time.Millisecond)
		m := f.members[name]
		pause := time.Duration(200+rnd.IntN(2500)) * time.Millisecond
		if rnd.IntN(2) == 0 {
			m.Cut()
			time.Sleep(pause)
			m.Mend()
			continue
		}
		mu.Lock()
		delete(f.members, name)
		mu.Unlock()
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		time.Sleep(pause)
		mu.Lock()
		f.open(name)
		mu.Unlock()
	}
	f.roles("a:voter b:voter c:voter")
	stop()
	clients.Wait()
	f.put("a", "end", "x")
	last, err := readList(t.Context(), f.members["b"])
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range verify(history, last) {
		t.Error(fault)
	}
	acknowledged := 0
	for _, o := range history {
		if o.append != 0 && o.acknowledged {
			acknowledged++
		}
	}
	t.Logf("%d operations, %d acknowledged appends, %d events", len(history), acknowledged, events)
	if acknowledged < 10*events {
		t.Errorf("%d appends were acknowledged: too few to prove anything", acknowledged)
	}
}

func readList(ctx context.Context, s store.Store) (list []int, err error) {
	e, err := s.Get(ctx, "list")
	if err != nil {
		return nil, err
	}
	return list, json.Unmarshal(e.Value, &list)
}

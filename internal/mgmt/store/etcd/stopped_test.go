// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"weft/internal/mgmt/store"
	"weft/internal/mgmt/store/etcd"
	"weft/internal/mgmt/store/storetest"
	"weft/internal/mgmt/store/voters"
	"weft/internal/proto/mono"
)

// memberEnv makes the test binary a member of a store, and a candidate for its master, until its standard input ends:
// "NAME DIR ADDRESS", and "SEED" but for the first. It prints "member ROLE" when its role changes, "elected" and
// "lost", and as the master "wrote" after each write. A line of its input is a reason to doubt the master.
const memberEnv = "WEFT_TEST_MEMBER"

func member(what string) int {
	ctx, end := context.WithCancel(context.Background())
	defer end()
	f := strings.Fields(what)
	began := time.Now()
	m, err := etcd.OpenMember(ctx, etcd.MemberConfig{Name: f[0], Dir: f[1], Listen: f[2], Advertise: f[2], Seeds: f[3:],
		Every: 100 * time.Millisecond, Settings: voters.Settings{ReplaceAfter: time.Hour},
		Now: func() mono.Time { return mono.Time(time.Second).Add(time.Since(began)) }})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	doubts := make(chan struct{})
	go func() {
		defer end()
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			select {
			case doubts <- struct{}{}:
			case <-ctx.Done():
			}
		}
	}()
	go func() {
		for said := ""; ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
			if p := m.Part(); p.Role.String() != said {
				said = p.Role.String()
				fmt.Println("member", said)
			}
		}
	}()
	for ctx.Err() == nil {
		term, err := store.Stand(ctx, m, "master", store.Candidate{Leader: store.Leader{Name: f[0]}, Doubts: doubts})
		if err != nil {
			break
		}
		fmt.Println("elected")
		for held := true; held; {
			select {
			case <-term.Lost():
				fmt.Println("lost")
				held = false
			case <-time.After(100 * time.Millisecond):
				if _, err := term.Txn(ctx, store.Txn{Do: []store.Op{store.PutOp("n", nil)}}); err == nil {
					fmt.Println("wrote")
				}
			case <-doubts:
			}
		}
		_ = term.Resign(ctx)
	}
	_ = m.Close()
	return 0
}

// process is a member in a process of its own.
type process struct {
	name  string
	cmd   *exec.Cmd
	in    io.Writer
	lines chan string // what it prints
}

func startMember(t *testing.T, name, address string, seeds ...string) *process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{name: name, cmd: exec.Command(exe), lines: make(chan string, 10000)}
	p.cmd.Env = append(os.Environ(), memberEnv+"="+strings.Join(append([]string{name, quick(t), address}, seeds...), " "))
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kill(p.cmd) })
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	return p
}

// expect reads what the process prints up to a line.
func (p *process) expect(t *testing.T, line string) {
	t.Helper()
	for l := range p.lines {
		if l == line {
			return
		}
	}
	t.Fatalf("%s ended before it printed %q", p.name, line)
}

// TestStoppedLeaderOfBoth stops the process that is master and leads the store, of three. Another becomes master and
// remains it while the first is stopped; the first one is not the master when it goes on.
func TestStoppedLeaderOfBoth(t *testing.T) {
	t.Parallel()
	at := freePort(t)
	a := startMember(t, "a", at)
	a.expect(t, "wrote")
	b, c := startMember(t, "b", freePort(t), at), startMember(t, "c", freePort(t), at)
	b.expect(t, "member voter")
	c.expect(t, "member voter")
	stalled := storetest.Stall(t)
	if err := a.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for _, p := range []*process{b, c} {
		fmt.Fprintln(p.in, "doubt")
	}
	const term = 60 // writes, one each 100 ms
	for writes, heir := 0, (*process)(nil); writes < term; {
		from := b
		l, ok := "", false
		select {
		case l, ok = <-b.lines:
		case l, ok = <-c.lines:
			from = c
		}
		switch {
		case !ok:
			t.Fatalf("%s ended", from.name)
		case l == "elected":
			t.Logf("%s is elected after %v", from.name, time.Since(began).Round(time.Millisecond))
			heir, writes = from, 0
		case l == "lost" && stalled() == 0:
			t.Fatalf("%s is the master no more after %v and %d writes", from.name,
				time.Since(began).Round(time.Millisecond), writes)
		case l == "wrote" && from == heir:
			writes++
		}
	}
	for len(a.lines) > 0 { // of the time before it was stopped
		<-a.lines
	}
	if err := a.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for l := range a.lines {
		if l == "wrote" {
			t.Error("it wrote when it went on")
		}
		if l == "lost" {
			break
		}
	}
}

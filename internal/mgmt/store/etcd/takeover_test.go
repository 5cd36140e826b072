// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"weft/internal/mgmt/store"
	"weft/internal/mgmt/store/etcd"
	"weft/internal/mgmt/store/storetest"
)

// masterEnv makes the test binary a master that lives until it is killed. Its
// value is the store: a URL, or the directory of one to embed.
const masterEnv = "WEFT_TEST_MASTER"

func master(where string) int {
	ctx := context.Background()
	var c *etcd.Client
	var err error
	if where[0] == '/' {
		var s *etcd.Server
		if s, err = etcd.Start(ctx, etcd.ServerConfig{Dir: where}); err == nil {
			c, err = s.Client()
		}
	} else {
		c, err = etcd.Connect(etcd.ClientConfig{Endpoints: []string{where}})
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	t, err := store.Campaign(ctx, c, "master", store.Leader{Name: "child"})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	for i := 0; ; i++ {
		if _, err := t.Txn(ctx, store.Txn{Do: []store.Op{store.PutOp("n", fmt.Append(nil, i))}}); err != nil {
			fmt.Println(err)
			return 1
		}
		if i == 10 {
			fmt.Println("master")
		}
	}
}

// spawn starts a master and returns a reader of its output.
func spawn(t *testing.T, where string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), masterEnv+"="+where)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kill(cmd) })
	return cmd, bufio.NewReader(out)
}

func line(t *testing.T, out *bufio.Reader) string {
	t.Helper()
	says, err := out.ReadString('\n')
	if err != nil {
		t.Fatalf("child prints %q, %v", says, err)
	}
	return says
}

// child starts a master and waits for its first line.
func child(t *testing.T, where string) (*exec.Cmd, string) {
	t.Helper()
	cmd, out := spawn(t, where)
	return cmd, line(t, out)
}

// masterChild starts a master and waits until it has written.
func masterChild(t *testing.T, where string) *exec.Cmd {
	t.Helper()
	cmd, says := child(t, where)
	if says != "master\n" {
		t.Fatalf("child prints %q", says)
	}
	return cmd
}

func kill(cmd *exec.Cmd) {
	if cmd.ProcessState == nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// TestTakeoverAfterKill kills the process of a master.
func TestTakeoverAfterKill(t *testing.T) {
	s := start(t, etcd.ServerConfig{Dir: quick(t), Listen: "http://127.0.0.1:0"})
	cmd := masterChild(t, s.URL())
	c := client(t, s)
	stalled := storetest.Stall(t)
	elected := make(chan *store.Term, 1)
	go func() {
		term, err := store.Campaign(t.Context(), c, "master", store.Leader{Name: "heir"})
		if err != nil {
			t.Error(err)
		}
		elected <- term
	}()
	kill(cmd)
	began := time.Now()
	term := <-elected
	took := time.Since(began)
	most := storetest.MaxTakeover + stalled()
	t.Logf("takeover %v after the death of the master", took.Round(time.Millisecond))
	if took > most {
		t.Errorf("takeover took %v, want at most %v", took, most)
	}
	if term != nil {
		if err := term.Resign(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestStoppedMasterIsFenced stops the process of a master until another is
// elected, and lets it go on: its next write must fail.
func TestStoppedMasterIsFenced(t *testing.T) {
	s := start(t, etcd.ServerConfig{Dir: quick(t), Listen: "http://127.0.0.1:0"})
	cmd, out := spawn(t, s.URL())
	if says := line(t, out); says != "master\n" {
		t.Fatalf("child prints %q", says)
	}
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	c := client(t, s)
	term, err := store.Campaign(t.Context(), c, "master", store.Leader{Name: "heir"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := term.Txn(t.Context(), store.Txn{Do: []store.Op{store.PutOp("n", []byte("mine"))}}); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if says := line(t, out); !strings.HasPrefix(says, "cannot write as the master of election/master/leader: ") {
		t.Errorf("the stale master prints %q", says)
	}
	if got := get(t, c, "n"); got != "mine" {
		t.Errorf("the stale master wrote %s", got)
	}
	if err := term.Resign(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestStartAfterKill starts where a server was killed in the middle of writes.
func TestStartAfterKill(t *testing.T) {
	dir := quick(t)
	for range 2 {
		kill(masterChild(t, dir))
		began := time.Now()
		s := start(t, etcd.ServerConfig{Dir: dir})
		t.Logf("start took %v", time.Since(began).Round(time.Millisecond))
		c := client(t, s)
		var n int
		if _, err := fmt.Sscan(get(t, c, "n"), &n); err != nil || n < 10 {
			t.Errorf("%d writes survived, want 10 or more: %v", n, err)
		}
		// The lease of the dead ends, and the office is free again.
		term, err := store.Campaign(t.Context(), c, "master", store.Leader{Name: "heir"})
		if err != nil {
			t.Fatal(err)
		}
		if err := term.Resign(t.Context()); err != nil {
			t.Error(err)
		}
		s.Close()
	}
}

// TestYield: a leader that ends passes its office on before: when it has ended another one leads, without an election.
func TestYield(t *testing.T) {
	f := newFabric(t)
	log := &lines{}
	open := func(name string, seeds ...string) {
		c := f.prepare(name, seeds...)
		c.Log = slog.New(slog.NewTextHandler(log, nil))
		f.configs[name] = c
		f.open(name, seeds...)
	}
	open("a")
	f.put("a", "k", "1")
	open("b", "a")
	open("c", "a", "b")
	f.roles("a:voter b:voter c:voter")
	leader := f.members["a"].Part().Leader
	f.kill(leader)
	var leads []string
	for name, m := range f.members {
		if m.Part().Leads {
			leads = append(leads, name)
		}
	}
	if len(leads) != 1 {
		t.Errorf("after the end of %s these lead: %v", leader, leads)
	}
	if log.has("the group elects another leader") {
		t.Error("the others had to elect a leader")
	}
}

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), text)
}

// TestYieldBesideEnd: a replica that is ended may be requested to pass its lead on at the same time, and afterwards.
func TestYieldBesideEnd(t *testing.T) {
	for range 5 {
		s := start(t, etcd.ServerConfig{Dir: quick(t)})
		ended := make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() {
			for {
				s.Yield()
				select {
				case <-ended:
					return
				default:
				}
			}
		})
		s.Close()
		close(ended)
		all.Wait()
		if s.Transfers() {
			t.Error("a replica that has ended passes its lead on")
		}
	}
}

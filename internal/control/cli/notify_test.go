// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft/internal/control/config"
)

// serviceManager is the socket of a service manager at a name, as NOTIFY_SOCKET names it.
type serviceManager struct {
	*net.UnixConn
	t *testing.T
}

func listenAsManager(t *testing.T, name string) serviceManager {
	t.Helper()
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: name})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return serviceManager{c, t}
}

// next returns the next states that were sent, or "" if none is waiting.
func (m serviceManager) next() string {
	m.t.Helper()
	m.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	b := make([]byte, 4096)
	n, err := m.Read(b)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		m.t.Fatal(err)
	}
	return string(b[:n])
}

// TestNotify: weft up reports READY=1 when programs can use the node and not before, and STOPPING=1 once it ends,
// because of a signal or by itself.
func TestNotify(t *testing.T) {
	for name, socket := range map[string]string{"path": filepath.Join(t.TempDir(), "notify"),
		"abstract": "@weft-notify-" + t.TempDir()} {
		t.Run(name, func(t *testing.T) {
			m := listenAsManager(t, socket)
			dir := t.TempDir()
			for _, byContext := range []bool{true, false} {
				ctx, cancel := context.WithCancel(t.Context())
				var stopping string
				code := Run(ctx, []string{"up", "--dir", dir}, Env{Out: io.Discard, Err: io.Discard,
					Getenv: func(name string) string { return map[string]string{notifySocket: socket}[name] },
					Node: func(ctx context.Context, c config.Config, ready func(), _ *slog.Logger) error {
						if got := m.next(); got != "" {
							t.Errorf("before the node is ready: %q", got)
						}
						ready()
						if want, got := "READY=1\nSTATUS=device weft0 in "+dir, m.next(); got != want {
							t.Errorf("got %q, want %q", got, want)
						}
						if byContext {
							cancel()
							m.SetReadDeadline(time.Now().Add(10 * time.Second))
							b := make([]byte, 4096)
							n, err := m.Read(b)
							if err != nil {
								t.Error(err)
							}
							stopping = string(b[:n])
						}
						return nil
					}})
				cancel()
				if !byContext {
					stopping = m.next()
				}
				if code != ExitOK || stopping != "STOPPING=1" {
					t.Errorf("code %d, got %q, want STOPPING=1", code, stopping)
				}
				if got := m.next(); got != "" {
					t.Errorf("after its end: %q", got)
				}
			}
		})
	}
}

// TestNotifyNobody: a node whose service manager cannot be reached runs, and its log has the reason.
func TestNotifyNobody(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "none")
	var log strings.Builder
	code := Run(t.Context(), []string{"up", "--dir", t.TempDir()}, Env{Out: io.Discard, Err: &log,
		Getenv: func(name string) string { return map[string]string{notifySocket: socket}[name] },
		Node: func(_ context.Context, _ config.Config, ready func(), _ *slog.Logger) error {
			ready()
			return nil
		}})
	if code != ExitOK || !strings.Contains(log.String(), "cannot notify the service manager") {
		t.Errorf("code %d, log %q", code, log.String())
	}
}

// TestDetachedNodeDoesNotNotify: a node in the background is not the service that a service manager started.
func TestDetachedNodeDoesNotNotify(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	socket := filepath.Join(t.TempDir(), "notify")
	m := listenAsManager(t, socket)
	weft := func(args ...string) {
		t.Helper()
		cmd := exec.Command(exe, append(args, "--dir", dir)...)
		cmd.Env = append(os.Environ(), "BE_WEFT=1", notifySocket+"="+socket)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("weft %v: %v: %s", args, err, out)
		}
	}
	weft("up", "--detach")
	weft("down")
	if got := m.next(); got != "" {
		t.Errorf("a node in the background sent %q", got)
	}
}

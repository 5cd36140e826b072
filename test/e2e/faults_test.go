// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/test/lab"
)

// TestFaultsOneNode: a fault reaches programs of one node that run already.
func TestFaultsOneNode(t *testing.T) {
	t.Parallel()
	b := openTestbed(t, 9000, true, 0)
	n := b.Server
	weft := func(t *testing.T, args ...string) {
		t.Helper()
		if out, err := n.Weft(args...); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	// onlyFault is the fault of the node.
	onlyFault := func() (f api.Fault, err error) {
		var list []api.Fault
		if err := n.Query(&list, "fault", "list"); err != nil || len(list) != 1 {
			return f, errors.Join(fmt.Errorf("%d faults", len(list)), err)
		}
		return list[0], nil
	}

	t.Run("everything dropped", func(t *testing.T) {
		p, err := b.Start(nil, "ib_send_bw", "-D", "60", "-F")
		defer p.Kill()
		if err == nil {
			err = b.Working(p)
		}
		if err == nil {
			err = moving(n, p.Client)
		}
		if err != nil {
			t.Fatalf("%v%s", err, p.Outputs())
		}
		out, err := n.Weft("fault", "add", "--drop", "100")
		if err != nil || strings.Count(out, "\n") != 1 || strings.Contains(out, "wire-local") {
			t.Errorf("%v: %s", err, out)
		}
		if err := p.Client.Wait(30 * time.Second); err == nil || errors.Is(err, lab.ErrTimeout) ||
			!strings.Contains(p.Client.Output(), "Failed status 12") {
			t.Errorf("the client: %v\n%s", err, p.Outputs())
		}
		if f, err := onlyFault(); err != nil || f.Dropped == 0 || f.Packets != f.Dropped {
			t.Errorf("%v, %+v", err, f)
		}
		p.Kill()
		weft(t, "fault", "delete", "all")
		b.pair(t, 60*time.Second, "ib_send_bw", "-n", "1000", "-F")
	})

	t.Run("a few lost", func(t *testing.T) {
		weft(t, "fault", "add", "--drop", "1", "--seed", "5")
		p, err := b.Start(nil, "ib_send_bw", "-D", "3", "-F")
		defer p.Kill()
		if err == nil {
			err = until("packets are lost, and sent again", func() (bool, error) {
				list, err := n.Counters()
				again := slices.ContainsFunc(list, func(c api.Counter) bool { return c.Name == "retransmits" && c.Value > 0 })
				f, lost := onlyFault()
				return again && f.Dropped > 0, errors.Join(err, lost)
			})
		}
		if err != nil {
			t.Fatalf("%v%s", err, p.Outputs())
		}
		if client, server := p.Wait(30 * time.Second); client != nil || server != nil {
			t.Errorf("client: %v, server: %v%s", client, server, p.Outputs())
		}
		weft(t, "fault", "delete", "all")
	})

	// Data is checked while faults come and go.
	t.Run("coming and going", func(t *testing.T) {
		stop, done := make(chan struct{}), make(chan error, 1)
		go func() {
			for {
				out, err := n.Weft("fault", "add", "--drop", "1", "--duplicate", "2", "--reorder", "2", "--corrupt", "1")
				time.Sleep(100 * time.Millisecond)
				if err == nil {
					out, err = n.Weft("fault", "delete", "all")
				}
				if err != nil {
					done <- fmt.Errorf("%w: %s", err, out)
					return
				}
				select {
				case <-stop:
					done <- nil
					return
				case <-time.After(100 * time.Millisecond):
				}
			}
		}()
		verbcheck(t, b, verbcheckLimit, nil, lossy()...)
		close(stop)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/test/lab"
)

// endless is a pair of programs that goes on until it is ended.
type endless struct {
	server, client string // words of a command; ADDR, DEV, GID and PORT are put in
	env            string
	// What a program does that only looks at its memory, and so cannot learn of
	// anything: its queue pair fails all the same.
	blind string // sides, "server" or "client", apart
	short bool   // part of make test
}

const (
	pingpong = " -d DEV -g GID -p PORT -n 100000000 "
	perf     = " -d DEV -x GID -p PORT -F "
	forUCX   = "UCX_TLS=rc_v UCX_NET_DEVICES=%s:1"
	ucxTest  = "ucx_perftest -f -p PORT -n 100000000 -s 65536 "
)

var endlessPairs = []endless{
	// Step 2 of the ladder.
	{server: "ibv_rc_pingpong" + pingpong, short: true},
	{server: "ibv_rc_pingpong -e" + pingpong},
	// Step 5.
	{server: "ib_send_bw -n 10000000" + perf, short: true},
	{server: "ib_send_bw -n 10000000 -e" + perf},
	{server: "ib_write_bw -n 10000000" + perf, short: true},
	{server: "ib_read_bw -n 10000000" + perf},
	{server: "ib_atomic_bw -n 10000000" + perf},
	{server: "ib_send_lat -n 10000000" + perf},
	{server: "ib_write_lat -n 10000000" + perf, blind: "server client"},
	{server: "ib_read_lat -n 10000000" + perf},
	{server: "ib_atomic_lat -n 10000000" + perf},
	// Step 10.
	{server: ucxTest + "-t tag_lat", env: forUCX},
	{server: ucxTest + "-t tag_bw", env: forUCX, short: true},
	{server: ucxTest + "-t ucp_am_bw", env: forUCX},
	{server: ucxTest + "-t ucp_put_lat", env: forUCX},
	{server: ucxTest + "-t ucp_get", env: forUCX},
	{server: ucxTest + "-t stream_bw", env: forUCX},
	// Step 11.
	{server: "rping -s -C 1000000 -V -p PORT -a ADDR", client: "rping -c -C 1000000 -V -p PORT -a ADDR", short: true},
}

// noticeLimit bounds how long a program may go on after its peer was killed; on an idle
// machine it is less than a second, but for UCX, see docs/notes/interop.md.
const noticeLimit = 30 * time.Second

// killed starts a pair, kills one side, and returns what is wrong with how the
// other takes it, and how long that took.
func (e *endless) killed(b *testbed, side string) (took time.Duration, err error) {
	var device string
	if device = b.Device; device == "" {
		device = "weft0"
	}
	port := lab.Port()
	words := func(n *lab.Node, s string) ([]string, error) {
		gid, err := n.GID(n.NetNS.V4)
		return strings.Fields(strings.NewReplacer("ADDR", b.Server.NetNS.V4, "DEV", device, "GID", strconv.Itoa(gid),
			"PORT", strconv.Itoa(port)).Replace(s)), err
	}
	cmd := func(n *lab.Node, s, more string) (lab.Cmd, error) {
		w, err := words(n, s+" "+more)
		c := n.Program(append([]string{"--"}, w...)...)
		c.Env = strings.Fields(strings.ReplaceAll(e.env, "%s", device))
		return c, err
	}
	client, more := e.client, ""
	if client == "" {
		client, more = e.server, "ADDR"
	}
	sc, err := cmd(b.Server, e.server, "")
	if err != nil {
		return 0, err
	}
	cc, err := cmd(b.Client, client, more)
	if err != nil {
		return 0, err
	}
	var p lab.Pair
	if p.Server, err = lab.Start(sc); err != nil {
		return 0, err
	}
	defer func() { p.Kill() }()
	if e.client == "" {
		err = p.Server.Listening(port, noticeLimit)
	} else {
		err = listensForConnections(b.Server, p.Server)
	}
	if err != nil {
		return 0, err
	}
	if p.Client, err = lab.Start(cc); err != nil {
		return 0, err
	}
	if err := b.Working(p); err != nil {
		return 0, fmt.Errorf("%w%s", err, p.Outputs())
	}
	victim, on, other, at := p.Client, b.Client, p.Server, b.Server
	otherSide := "server"
	if side == "server" {
		victim, on, other, at, otherSide = other, at, victim, on, "client"
	}
	if err := moving(at, other); err != nil {
		return 0, fmt.Errorf("%w%s", err, p.Outputs())
	}
	killed := time.Now()
	victim.Kill()
	if strings.Contains(e.blind, otherSide) {
		err = failed(at, other)
	} else {
		err = noticesDeath(other)
	}
	took = time.Since(killed)
	other.Signal(syscall.SIGTERM)
	if errors.Is(other.Wait(noticeLimit), lab.ErrTimeout) && err == nil {
		err = errors.New("the other does not end")
	}
	if err == nil {
		err = nothingOf(on, victim)
	}
	if err != nil {
		out, _ := at.Weft("res")
		err = fmt.Errorf("%w%s\n%s", err, p.Outputs(), out)
	}
	return took, err
}

// noticesDeath waits until a program ends with an error, or prints one: UCX, and rping, of which the exit
// status is 0.
func noticesDeath(p *lab.Proc) error {
	// That it ends is no fault here.
	return until("it ends with an error", func() (bool, error) {
		out := p.Output()
		if strings.Contains(out, "UCX  ERROR") || strings.Contains(out, "DISCONNECT EVENT") {
			return true, nil
		}
		select {
		case <-p.Done():
			if p.Wait(noticeLimit) == nil {
				return false, errors.New("it ended as if nothing had happened")
			}
			return true, nil
		default:
			return false, nil
		}
	})
}

// until repeats a check until it is true, as long as the peers live.
func until(what string, check func() (bool, error), peers ...lab.Peer) error {
	return lab.Until(what, noticeLimit, check, peers...)
}

func listensForConnections(n *lab.Node, p *lab.Proc) error {
	return until("it listens for connections", func() (bool, error) {
		var all []api.CMID
		err := n.Query(&all, "res", "cm_id")
		return slices.ContainsFunc(all, func(i api.CMID) bool { return i.PID == p.PID() && i.State == "LISTEN" }), err
	}, p, n.Proc)
}

// moving waits until packets have passed between the programs: more than it
// takes them to find each other.
func moving(n *lab.Node, p *lab.Proc) error {
	return until("packets pass", func() (bool, error) {
		var r api.Resources
		if err := n.Query(&r, "res"); err != nil {
			return false, err
		}
		mine := map[string]bool{}
		for _, q := range r.QPs {
			if q.PID == p.PID() {
				mine[fmt.Sprint(q.LQPN)] = true
			}
		}
		list, err := n.Counters()
		packets := uint64(0)
		for _, c := range list {
			if c.Scope == "qp" && mine[c.Instance] && (c.Name == "rcvd_packets" || c.Name == "sent_packets") {
				packets += c.Value
			}
		}
		return packets > 1000, err
	}, p, n.Proc)
}

// failed waits until every connected queue pair of a program has failed, or the
// program has ended for that.
func failed(n *lab.Node, p *lab.Proc) error {
	return until("its queue pairs fail", func() (bool, error) {
		select {
		case <-p.Done():
			return true, nil
		default:
		}
		var r api.Resources
		err := n.Query(&r, "res")
		mine := slices.DeleteFunc(r.QPs, func(q api.QP) bool { return q.PID != p.PID() || q.Type != "RC" })
		return len(mine) > 0 && !slices.ContainsFunc(mine, func(q api.QP) bool { return q.State != "ERR" }), err
	}, n.Proc)
}

// nothingOf waits until a node has nothing of a program.
func nothingOf(n *lab.Node, p *lab.Proc) error {
	return until("nothing is left of it", func() (bool, error) {
		out, err := n.Weft("res", "-o", "json")
		return !strings.Contains(out, fmt.Sprintf(`"pid": %d,`, p.PID())) &&
			!strings.Contains(out, fmt.Sprintf(`"pid":%d,`, p.PID())), err
	}, n.Proc)
}

// TestKilled: a program is killed, and its peer has an error soon, whether it had
// requests on their way or only waited; nothing stays on the node of the dead.
func TestKilled(t *testing.T) {
	t.Parallel()
	for _, oneNode := range []bool{true, false} {
		t.Run(map[bool]string{true: "one node", false: "two nodes"}[oneNode], func(t *testing.T) {
			b := openTestbed(t, 9000, oneNode, 0)
			var running sync.WaitGroup
			slots := make(chan struct{}, 3)
			for _, e := range endlessPairs {
				for _, side := range []string{"server", "client"} {
					if !lab.Soak && (!e.short || oneNode && !strings.HasPrefix(e.server, "ibv_")) {
						continue
					}
					slots <- struct{}{}
					running.Go(func() {
						defer func() { <-slots }()
						took, err := e.killed(b, side)
						if err != nil {
							t.Errorf("%s, %s killed: %v", e.server, side, err)
						} else {
							t.Logf("%-60s %s killed: the other knew after %v", e.server, side,
								took.Round(time.Millisecond))
						}
					})
				}
			}
			running.Wait()
		})
	}
}

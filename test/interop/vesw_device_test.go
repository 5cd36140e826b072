// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/test/lab"
)

const (
	stationAddr  = "10.78.0.21"
	stationAddr6 = "fd78::21"
)

// nodeDevice adds a device in the switch to node 0, for its programs.
func (f *fleet) nodeDevice(addrs string) {
	f.weft(0, "dev", "add", "lab0", "--segment", "vesw:lab", "--addr", addrs)
	f.wait("the device is active", func() bool {
		var list []api.Function
		f.query(0, &list, "dev", "list")
		for _, d := range list {
			if d.Name == "lab0" {
				return d.PortState == "ACTIVE"
			}
		}
		return false
	})
}

// station gives node 0 a device in the switch, without an interface of the host, and has it talk with soft-RoCE of the
// guest at the other node and of its own, as client and as server.
func (f *fleet) station(t *testing.T) {
	f.nodeDevice(stationAddr + "/24," + stationAddr6 + "/64")
	for i := range f.guests {
		f.reaches(i, stationAddr)
		f.reaches(i, stationAddr6)
	}
	for _, x := range []struct {
		name, guest string
		gid, peer   int
	}{{"IPv4 to the other node", guestAddr(1), 1, 1}, {"IPv6 to the other node", guestAddr6(1), 2,
		1}, {"IPv4 within the node", guestAddr(0), 1, 0}} {
		gid := f.rxeGIDOf(x.peer, x.guest)
		t.Run(x.name+", client", func(t *testing.T) {
			f.pingpongWith(x.peer, gid, func() (string, error) {
				return lab.RunBeside(f.guests[x.peer], f.nodes[0].Program("ibv_rc_pingpong", "-d", "lab0", "-c",
					"-g", strconv.Itoa(x.gid), "-n", "100", guestAddr(x.peer)), 2*time.Minute)
			})
		})
		t.Run(x.name+", server", func(t *testing.T) { f.servePingpong(t, x.gid, x.peer, gid) })
	}
	// Whatever soft-RoCE sends is checked whole, its identifications too.
	list, err := f.nodes[0].Counters()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list {
		if c.Scope == api.ScopeLink && c.Instance == "lab0" && (c.Name == "rcvd_packets" && c.Value == 0 ||
			strings.HasPrefix(c.Name, "drop_bad_") && c.Value != 0) {
			t.Errorf("%s is %d", c.Name, c.Value)
		}
	}
}

// servePingpong has the device serve a guest's ibv_rc_pingpong, again where one of them gave up.
func (f *fleet) servePingpong(t *testing.T, gid, peer int, peerGID string) {
	for try := range 3 {
		port := 19900 + try
		server, err := lab.Start(f.nodes[0].Program("ibv_rc_pingpong", "-d", "lab0", "-c", "-g", strconv.Itoa(gid),
			"-n", "100", "-p", strconv.Itoa(port)))
		if err != nil {
			t.Fatal(err)
		}
		defer server.Kill()
		if err := server.Listening(port, veswLimit); err != nil {
			t.Fatalf("%v\n%s", err, server.Output())
		}
		out, err := f.runFor(peer, "timeout 60 ibv_rc_pingpong -d rxe0 -c -g "+peerGID+" -n 100 -p "+
			strconv.Itoa(port)+" "+hostAddr(0), 2*time.Minute, server)
		if err != nil {
			server.Kill() // it may wait for ever
		}
		serr := server.WaitBeside(f.guests[peer], veswLimit)
		r := result{weft: server.Output(), rxe: out}
		if err == nil && serr == nil && pingpong(r.weft, r.rxe) == "" {
			return
		}
		if !r.gaveUp() || try == 2 {
			t.Fatalf("guest: %v, server: %v\n-- guest --\n%s\n-- server --\n%s", err, serr, out, r.weft)
		}
	}
}

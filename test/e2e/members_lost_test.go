// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"weft/internal/control/api"
	"weft/test/lab"
)

// value runs a command and returns what it printed, without the space around it.
func (r *reader) value(host, text string) string {
	r.t.Helper()
	return strings.TrimSpace(r.must(host, text))
}

// kill ends the nodes of some hosts as a loss of power would.
func (r *reader) kill(hosts ...string) {
	r.t.Helper()
	for _, h := range hosts {
		r.must(h, "kill -9 $(cat $WEFT_DIR/lock)")
	}
	for _, h := range hosts {
		r.eventually(h, "weft status >/dev/null 2>&1; echo code: $?", "code: 3")
	}
}

// voters waits until a node counts so many voters of the store.
func (r *reader) voters(host string, n int) {
	r.t.Helper()
	r.eventually(host, "echo voters: $(weft store status | grep -c '  voter  \\|  leader  ')", fmt.Sprint("voters: ", n))
}

// healthy waits until a node has so many trunks and nothing is degraded.
func (r *reader) healthy(host string, trunks int) {
	r.t.Helper()
	r.eventually(host, "weft status", fmt.Sprintf("trunks %d of %d up", trunks, trunks),
		"health nothing is degraded ...")
}

// partitions are those that are configured as a node has them: by name, P_Key and members.
func (r *reader) partitions(host string) map[string]string {
	r.t.Helper()
	var list []api.Partition
	r.query(host, "weft pkey list -o json", &list)
	named := map[string]string{}
	for _, p := range list {
		if p.Name != "" {
			var members []string
			for _, m := range p.Members {
				if m.Membership != "" {
					members = append(members, m.Port+":"+m.Membership)
				}
			}
			slices.Sort(members) // the list is sorted by hosts' names, and those of hosts that are away are not known
			named[p.Name] = p.PKey + " " + strings.Join(members, " ")
		}
	}
	return named
}

// query runs a command that prints JSON.
func (r *reader) query(host, text string, v any) {
	r.t.Helper()
	out := r.must(host, text)
	if err := json.Unmarshal([]byte(out), v); err != nil {
		r.t.Fatalf("%s$ %s: %v\n%s", host, text, err, out)
	}
}

// goOn starts a pair of programs, between two hosts or on one, that sends messages all the time, until the end of the
// test.
func (r *reader) goOn(server, client, address string) {
	r.t.Helper()
	r.programGoesOn("ibv_rc_pingpong -d weft_ib0 -e -n 2000000000", server, client, address)
}

// programGoesOn is goOn with another pair of programs.
func (r *reader) programGoesOn(program, server, client, address string) {
	r.t.Helper()
	program = "weft run -- " + program
	r.must(server, program+" >/run/server 2>&1 &")
	// The client has the processor for a tenth of the time.
	r.must(client, program+" "+address+` >/run/client 2>&1 & client=$!
(while kill -CONT $client 2>/dev/null; do sleep 0.02; kill -STOP $client; sleep 0.18; done) >/dev/null 2>&1 & true`)
	r.goesOn(client)
}

// goesOn waits until the client of goOn has worked again.
func (r *reader) goesOn(client string) {
	r.t.Helper()
	r.must(client, `used() { cut -d' ' -f14,15 /proc/$client/stat; }; begun=$(used)
for wait in $(seq 200); do [ "$(used)" = "$begun" ] || break; sleep 0.05; done
[ "$(used)" != "$begun" ] && kill -0 $client || { cat /run/client; false; }`)
}

// TestMembersLost: of three members each dies in turn, and changes go on; then two of them, and traffic goes on,
// changes are refused with the reason, and one command makes the third the authority, from its own copy or from a
// backup. Those that died come back as members.
func TestMembersLost(t *testing.T) {
	lab.NeedNetNS(t)
	t.Parallel()
	r := newReader(t)
	r.hosts(3)
	r.found()
	r.voters("host1", 3)
	r.must("host1", "weft pkey add 0x8001 --name red weft_ib0 weft_ib0@host2 --yes", "red 0x8001 ...")
	r.must("host1", "weft pkey add 0xffff ALL")
	hosts := []string{"host1", "host2", "host3"}
	for i, gone := range hosts {
		other := hosts[(i+1)%3]
		r.kill(gone)
		change := fmt.Sprintf("k%d 0x801%d ...", i, i)
		r.eventually(other, fmt.Sprintf("weft pkey add 0x801%d --name k%d weft_ib0", i, i), change)
		r.must(gone, "weft up --detach", "weft: ready: ...")
		r.eventually(gone, "weft pkey list", change)
		for _, h := range hosts {
			r.healthy(h, 2)
		}
	}

	t.Run("the majority", func(t *testing.T) {
		r.goOn("host1", "host1", "127.0.0.1")
		had := r.partitions("host1")
		r.kill("host2", "host3")
		r.eventually("host1", "weft status",
			"... store_no_majority: no majority of the voters ... fix: ... weft store restore")
		// Its manager takes over first, and is not ready for a change until it has swept.
		r.eventually("host1", "weft pkey add 0x8020 --name none weft_ib0 && echo added; true",
			"... no majority of the voters of the store ... fix: ... weft store restore")
		r.goesOn("host1")
		r.must("host1", "weft pkey list", "red 0x8001 ...", "k2 0x8012 ...")
		r.must("host1", "weft store backup /run/backup", "/run/backup: ...")
		r.must("host1", "weft store restore", "this node has the store, generation 2; ...")
		r.eventually("host1", "weft pkey add 0x8021 --name after weft_ib0", "after 0x8021 ...")
		has := r.partitions("host1")
		delete(has, "after")
		if len(had) < 5 || !maps.Equal(had, has) {
			t.Errorf("partitions were %v and are %v", had, has)
		}
		r.comeBack("host1", "host2", "host3")
		r.must("host2", "weft pkey list", "red 0x8001 ...", "after 0x8021 ...")
		r.goesOn("host1")
	})

	t.Run("a backup", func(t *testing.T) {
		// Another host restores: of the three that have a copy none was more than the others.
		r.kill("host1", "host2")
		r.eventually("host3", "weft status", "... store_no_majority: ...")
		r.must("host3", "weft store restore /run/backup", "this node has the store, generation 3; ...")
		r.eventually("host3", "weft pkey add 0x8022 --name later weft_ib0", "later 0x8022 ...")
		r.comeBack("host3", "host1", "host2")
		list := r.must("host1", "weft pkey list", "red 0x8001 ...", "later 0x8022 ...")
		if strings.Contains(list, "after ") { // a port may have 0x8021 until the next sweep
			t.Errorf("what was added after the backup is back:\n%s", list)
		}
	})
	r.must("host1", "weft run -- ibv_rc_pingpong -d weft_ib0 -p 18600 &")
	r.must("host2", "weft run -- ibv_rc_pingpong -d weft_ib0 -p 18600 10.0.0.1", "1000 iters in ...")
}

// comeBack starts the nodes of two members that were away while a third restored the store, and waits until all three
// are voters again.
func (r *reader) comeBack(authority string, returned ...string) {
	r.t.Helper()
	for _, h := range returned {
		r.must(h, "weft up --detach", "weft: ready: ...")
	}
	r.voters(authority, 3)
	for _, h := range append(returned, authority) {
		r.healthy(h, 2)
	}
	r.must(authority, "echo active: $(weft member | grep -c ' active ')", "active: 3")
}

// refused runs a command that fails with one line, with a reason and a fix.
func (r *reader) refused(host, text, why, fix string) {
	r.t.Helper()
	out, err := r.run(command{host: host, text: text})
	lines := slices.DeleteFunc(strings.Split(out, "\n"), func(l string) bool { return l == "" })
	_, after, hasFix := strings.Cut(out, ". fix: ")
	if err == nil || len(lines) != 1 || !strings.Contains(out, why) || !hasFix || !strings.Contains(after, fix) {
		r.t.Errorf("%s$ %s: %v, want %q with a fix %q in one line:\n%s", host, text, err, why, fix, out)
	}
}

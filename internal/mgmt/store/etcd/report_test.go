// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"weft/internal/mgmt/store/etcd"
	"weft/internal/mgmt/store/voters"
)

// reporter is a host that answers requests for a report with one of its own making.
func reporter(t *testing.T, cert *tls.Certificate, r etcd.Report) (address string, asked *atomic.Int64) {
	t.Helper()
	asked = new(atomic.Int64)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_ = json.NewEncoder(w).Encode(r)
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{*cert}, MinVersion: tls.VersionTLS13}
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // it serves no gRPC
	s.StartTLS()
	t.Cleanup(s.Close)
	_, address, _ = strings.Cut(s.URL, "://")
	return address, asked
}

// TestFalseReport: a report of a later group counts only where it is from a voter of the fabric, about itself. A leaf
// that serves one, and a voter that reports in another's name, take no replica out of use, and are no client's store.
func TestFalseReport(t *testing.T) {
	for what, x := range map[string]struct{ certificate, name string }{
		"of a leaf":                     {"m7", "m7"},
		"of a leaf in a voter's name":   {"m7", "b"},
		"of a voter in another's name":  {"b", "c"},
		"of a member that was removed":  {"removed", "removed"},
		"of a voter without a name":     {"b", ""},
		"of a leaf, of the same number": {"m7", "conflict"},
	} {
		t.Run(what, func(t *testing.T) {
			f := newFabric(t)
			ca := newAuthority(t)
			f.security = func(name string) *etcd.Security { return ca.security(t, name) }
			later := voters.Identity{Cluster: 1, Generation: 1 << 63}
			if x.name == "conflict" {
				later.Generation = 1
			}
			cert := ca.member(t, x.certificate, true)
			at, asked := reporter(t, &cert, etcd.Report{Name: x.name, ID: 7, Group: later, Applied: 1 << 40,
				Replicas: []etcd.Replica{{ID: 7, Name: x.name, URL: "https://127.0.0.1:1"}}})
			f.open("a")
			f.put("a", "k", "kept")
			f.kill("a")
			c := f.configs["a"]
			c.Seeds = []string{at}
			f.configs["a"] = c
			m := f.open("a")
			n := asked.Load()
			f.until("a requests another report", func() bool { return asked.Load() >= n+2 })
			f.roles("a:voter")
			f.expect("a", "k", "kept")
			if p := m.Part(); p.Why != "" || p.Group.Generation != 1 {
				t.Errorf("%+v", p)
			}

			f.open("d", "a") // d has only the false report at first
			f.kill("d")
			c = f.configs["d"]
			c.Seeds = []string{at, f.configs["a"].Advertise}
			f.configs["d"] = c
			f.open("d")
			f.expect("d", "k", "kept")
		})
	}
}

// holds checks for some looks of the leader at the group that roles stay as they are, as in "a:voter b:client".
func (f *fabric) holds(want string) {
	f.Helper()
	for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		for _, w := range strings.Fields(want) {
			name, role, _ := strings.Cut(w, ":")
			if p := f.members[name].Part(); p.Role.String() != role {
				f.Fatalf("%s is a %v, want %s", name, p.Role, w)
			}
		}
	}
}

// TestRecordOfAnother: a member writes its own record in the name of a voter, to have it leave or to be in its place.
// The leader of the group takes a record for that of the member with its key.
func TestRecordOfAnother(t *testing.T) {
	f := newFabric(t)
	f.open("a")
	f.open("b", "a")
	f.open("c", "a")
	f.roles("a:voter b:voter c:voter")
	f.open("d", "a")
	f.until("d knows the voters", func() bool { return f.members["d"].Part().Voters == 3 })
	f.put("d", "store/member/m7", `{"name":"b","address":"127.0.0.1:1","leaving":true}`)
	f.put("d", "store/member/m8", `{"name":"c","address":"127.0.0.1:1","unable":true}`)
	f.holds("a:voter b:voter c:voter d:client")
}

// TestAbleByRecords: a member that the fabric gave no role for it has no replica, whatever its own record says, and
// neither has one with an address that is none.
func TestAbleByRecords(t *testing.T) {
	f := newFabric(t)
	ca := newAuthority(t)
	f.security = func(name string) *etcd.Security {
		s := ca.security(t, name)
		s.Able = func(name string) bool { return name != "leaf" }
		return s
	}
	f.open("a")
	f.put("a", "store/member/bad", `{"name":"bad","address":"no address"}`)
	f.put("a", "store/present/bad", `{}`)
	f.open("leaf", "a")
	f.expect("leaf", "store/present/bad", "{}")
	f.holds("a:voter leaf:client")
	f.open("b", "a") // of the able it is the second
	f.roles("a:voter b:learner leaf:client")
}

// TestAsked: in a large fabric the members with a replica are asked in each round, and every other in turn.
func TestAsked(t *testing.T) {
	r := etcd.Roster{Addresses: map[string]string{}}
	var seeds []string
	all := map[string]bool{}
	for i := range 1000 {
		a := fmt.Sprintf("10.0.%d.%d:1", i/200, i%200)
		r.Addresses[fmt.Sprint("h", i)] = a
		all[a] = true
		if i%3 == 0 {
			seeds = append(seeds, a)
		}
	}
	const own = "10.0.0.7:1"
	delete(all, own)
	voters := []string{"[fd00::1]:1", "99.0.0.1:1", "10.0.4.199:1"}
	for _, a := range voters {
		r.Replicas = append(r.Replicas, etcd.Replica{URL: "https://" + a})
		all[a] = true
	}
	r.Replicas = append(r.Replicas, etcd.Replica{URL: "https://" + own}, etcd.Replica{})
	asked := map[string]bool{}
	for _, round := range etcd.Asked(own, seeds, r, etcd.MaxAsked, 17) {
		if len(round) != etcd.MaxAsked || !slices.Equal(round[:3], voters) {
			t.Fatalf("a round of %d begins with %v", len(round), round[:3])
		}
		for _, a := range round {
			asked[a] = true
		}
	}
	if !maps.Equal(asked, all) {
		t.Errorf("%d of %d are asked", len(asked), len(all))
	}
	if once := etcd.Asked(own, seeds, r, 0, 1)[0]; len(once) != len(all) || !slices.Equal(once[:3], voters) {
		t.Errorf("at the start %d of %d are asked", len(once), len(all))
	}
}

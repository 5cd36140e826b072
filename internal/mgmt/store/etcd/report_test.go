// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"crypto/tls"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

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
	if cert == nil {
		s.Start()
	} else {
		s.TLS = &tls.Config{Certificates: []tls.Certificate{*cert}, MinVersion: tls.VersionTLS13}
		s.StartTLS()
	}
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

// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"context"

	"github.com/google/go-cmp/cmp"
)

var rewrite = flag.Bool("rewrite", false, "write golden files anew")

// goldenRequests are one request of each operation, and some that it refuses.
var goldenRequests = []struct{ method, path, body string }{
	{"GET", "/status", ""},
	{"GET", "/devices", ""},
	{"GET", "/resources", ""},
	{"GET", "/counters", ""},
	{"GET", "/groups", ""},
	{"GET", "/faults", ""},
	{"POST", "/faults", `{"drop":1}`},
	{"POST", "/faults", `{"drop":101}`},
	{"POST", "/faults", `{"dorp":1}`},
	{"POST", "/faults", `{"drop":1}{}`},
	{"DELETE", "/faults/1", ""},
	{"DELETE", "/faults/9", ""},
	{"DELETE", "/faults/x", ""},
	{"POST", "/use", ""},
	{"GET", "/functions", ""},
	{"POST", "/functions", `{"name":"vf","qos":{"0":9},"enabled":false,"weight":7}`},
	{"POST", "/functions", `{"name":"Bad"}`},
	{"PATCH", "/functions/vf", `{"weight":8}`},
	{"PATCH", "/functions/none", `{"weight":8}`},
	{"PATCH", "/functions/vf", `{"weight":-1}`},
	{"DELETE", "/functions/vf", ""},
	{"GET", "/functions/vf/lost", ""},
	{"GET", "/functions/none/lost", ""},
	{"POST", "/shutdown", ""},
	{"GET", "/captures", ""},
	{"POST", "/captures", `{"device":"none"}`},
	{"POST", "/captures", `{"snaplen":-1}`},
	{"POST", "/captures", `{"count":3}`},
	{"DELETE", "/captures/9", ""},
	{"DELETE", "/captures/x", ""},
	{"GET", "/fabric/subnet", ""},
	{"GET", "/fabric/text?format=dot", ""},
	{"GET", "/fabric/text?format=xml", ""},
	{"GET", "/fabric/text", ""},
	{"GET", "/fabric/routes", ""},
	{"GET", "/fabric/path?from=a+b&to=c%40d%26e", ""},
	{"GET", "/fabric/check?from=a+b&to=c%40d%26e", ""},
	{"GET", "/fabric/findings", ""},
	{"GET", "/fabric/manager", ""},
	{"GET", "/fabric/trunks", ""},
	{"GET", "/fabric/partitions", ""},
	{"GET", "/fabric/desired", ""},
	{"POST", "/fabric/desired/compare", `{"partitions":[{"line":3,"name":"red","pkey":"0x8001","members":["ALL"]}]}`},
	{"PUT", "/fabric/desired", `{"vesws":[],"groups":[{"mgid":"ff12::1"}]}`},
	{"PUT", "/fabric/desired", `{"vesw":[]}`},
	{"GET", "/fabric/history", ""},
	{"GET", "/fabric/history?since=2026-11-23T14:00:00Z", ""},
	{"GET", "/fabric/history?since=yesterday", ""},
	{"GET", "/fabric/ports/0200:0000:0000:0005/lost", ""},
	{"GET", "/node/desired", ""},
	{"GET", "/fabric/groups", ""},
	{"GET", "/store", ""},
	{"GET", "/store/entries?tree=a%2Fb", ""},
	{"GET", "/store/backup", ""},
	{"POST", "/store/restore", `{"force":true}`},
	{"POST", "/store/defrag", ""},
	{"POST", "/fabric/sweep", ""},
	{"PATCH", "/fabric/manager", `{"m_key":"random","roots":["a","b"]}`},
	{"PATCH", "/fabric/manager", `{"m_kei":"random"}`},
	{"POST", "/fabric/partitions", `{"name":"red","pkey":"0x8001"}`},
	{"POST", "/fabric/partitions", `[]`},
	{"DELETE", "/fabric/partitions/0x1?member=x%40y&member=ALL", ""},
	{"DELETE", "/fabric/partitions/..%2Fx", ""},
	{"POST", "/fabric/groups/join", `{"mgid":"ff12::1"}`},
	{"POST", "/fabric/groups/join", `{"mgit":"ff12::1"}`},
	{"POST", "/fabric/groups/leave", `{"mgid":"ff12::1"}`},
	{"GET", "/ipoib/links", ""},
	{"POST", "/ipoib/links", `{"backend":"tun"}`},
	{"POST", "/ipoib/links", `{"backend":"tap"}`},
	{"DELETE", "/ipoib/links/a%2Fb", ""},
	{"GET", "/ipoib/neighbours?link=x+y", ""},
	{"GET", "/ipoib/shadow?link=x", ""},
	{"GET", "/ipoib/paths?link=", ""},
	{"GET", "/ipoib/groups", ""},
	{"GET", "/ipoib/stats", ""},
	{"GET", "/ipoib/params", ""},
	{"GET", "/ipoib/events?after=7&wait=1", ""},
	{"GET", "/ipoib/events?after=7", ""},
	{"GET", "/ipoib/events?after=-1", ""},
	{"GET", "/ipoib/events", ""},
	{"POST", "/ipoib/path", `{"address":"10.0.0.2"}`},
	{"POST", "/ipoib/path", `{"adress":"10.0.0.2"}`},
	{"POST", "/ipoib/links/x/do", `{"op":"neigh_flush"}`},
	{"POST", "/ipoib/links/x/do", `7`},
	{"GET", "/vesws", ""},
	{"GET", "/vesws/a%2Fb%20c", ""},
	{"POST", "/vesws", `{"name":"x","mtu":9000}`},
	{"POST", "/vesws", `{"nam":"x"}`},
	{"PATCH", "/vesws/x", `{"mtu":3}`},
	{"PATCH", "/vesws/x", `{}`},
	{"PATCH", "/vesws/x", `{"mtu":"3"}`},
	{"DELETE", "/vesws/x", ""},
	{"POST", "/vesws/x/ports", `{"port":"d@h","vport":3,"gateway":true}`},
	{"POST", "/vesws/x/ports", `{"port":7}`},
	{"DELETE", "/vesws/x/ports/d@h", ""},
	{"DELETE", "/vesws/x/ports/d@h?vport=0", ""},
	{"DELETE", "/vesws/x/ports/d@h?vport=-1", ""},
	{"DELETE", "/vesws/x/ports/d@h?vport=one", ""},
	{"GET", "/vesw/interfaces", ""},
	{"GET", "/vesw/stats?interface=a+b", ""},
	{"POST", "/vesw/interfaces", `{"device":"d","vesw":5,"backend":"tap"}`},
	{"POST", "/vesw/interfaces", `{"device":"d","vesw":0,"backend":"tap"}`},
	{"DELETE", "/vesw/interfaces/d:5", ""},
	{"GET", "/members", ""},
	{"PATCH", "/members/b1", `{"name":"b2"}`},
	{"PATCH", "/members/none", `{"name":"b2"}`},
	{"PATCH", "/members/c1/role", `{"role":"leaf"}`},
	{"PATCH", "/members/a1/role", `{"role":"leaf"}`},
	{"PATCH", "/members/a1/role", `{"role":"core"}`},
	{"GET", "/fabric/plan", ""},
	{"POST", "/members/b1/drain", `{"drain":true,"force":true}`},
	{"POST", "/members/b1/drain", `{"drian":true}`},
	{"DELETE", "/members/b1", ""},
	{"DELETE", "/members/b1?force=1", ""},
	{"POST", "/members/rotation", ""},
	{"GET", "/tokens", ""},
	{"POST", "/tokens", `{"uses":1,"life_ns":3600000000000}`},
	{"POST", "/tokens", `{"uses":-1,"life_ns":1}`},
	{"DELETE", "/tokens/abcdefgh", ""},
	{"GET", "/vms", ""},
	{"POST", "/vms", `{"name":"web"}`},
	{"POST", "/vms", `{"name":"Web","queues":99}`},
	{"DELETE", "/vms/web", ""},
	{"GET", "/nothing", ""},
	{"GET", "/shutdown", ""},
	{"PUT", "/vms", ""},
}

// TestGolden compares what the server answers, byte for byte, with testdata/golden.txt: paths, status codes, JSON and
// error texts are part of the interface. Each request has its answer with full access, without error; then that of a
// peer that may read, and that of a node that fails.
func TestGolden(t *testing.T) {
	var got strings.Builder
	for _, x := range goldenRequests {
		fmt.Fprintf(&got, "%s %s %s\n", x.method, x.path, x.body)
		node := errors.New("it fails")
		for _, y := range []struct {
			name   string
			access Access
			refuse error
			fail   error
		}{{"full", FullAccess, nil, nil}, {"read", ReadAccess, nil, nil}, {"none", NoAccess,
			errors.New("uid 7 may not"), nil}, {"fails", FullAccess, nil, node}} {
			b := &fake{err: y.fail, funcs: []Function{{Name: "vf"}}, faults: []Fault{{ID: 1}}}
			b.fail, b.veswError, b.memberError = y.fail, y.fail, y.fail
			status, body := exchange(t, serve(t, b, y.access, y.refuse), x.method, "/v1"+x.path, x.body)
			fmt.Fprintf(&got, "  %s: %d %s\n", y.name, status, strings.TrimSpace(strings.ReplaceAll(body, piece,
				"<piece>")))
		}
	}
	const name = "testdata/golden.txt"
	if *rewrite {
		if err := os.WriteFile(name, []byte(got.String()), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Error(diff)
	}
}

// exchange sends a request and returns the status and body of its answer.
func exchange(t *testing.T, path, method, url, body string) (int, string) {
	t.Helper()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string,
		string) (net.Conn, error) {
		return net.Dial("unix", path)
	}}}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://weft"+url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// SPDX-License-Identifier: Apache-2.0

package fabricfile

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/control/api"
)

const whole = `version: 1
subnet:
  routing: ftree,updn
  roots:
    - 02aa:0000:0001:0000
  m_key_lease_s: 60
partitions:
  - name: red
    pkey: 0x8001
    members:
      - ALL=limited
      - 0200:0000:0001:0003
  - name: "7"
    pkey: 0x8002
ethernet:
  fabric_id: 1
vesws:
  - name: lab
    id: 5
    pkey: 0x8001
    flood: true
    pcp: [0, 1, 2, 3, 4, 5, 6, 7]
    ports:
      - port: 0200:0000:0001:0003
        vport: 0
        number: 1
        gateway: true
groups:
  - mgid: ff12:401b:ffff::1
    qkey: 0x00000b1b
    mtu: 2048
node:
  guid: 02aa:0000:0001:0000
  devices:
    - name: vf1
      weight: 7
      qos:
        "3": 9
      quotas:
        memory_bytes: 1073741824
      addresses:
        - 10.0.0.1/24
  links: []
`

func wholeDesired() api.Desired {
	zero := 0
	return api.Desired{
		Subnet: &api.DesiredSubnet{Line: 3, Routing: "ftree,updn", Roots: []string{"02aa:0000:0001:0000"}, LeaseS: 60},
		Partitions: []api.DesiredPartition{{Line: 8, Name: "red", PKey: "0x8001",
			Members: []string{"ALL=limited", "0200:0000:0001:0003"}}, {Line: 13, Name: "7", PKey: "0x8002"}},
		Ethernet: &api.DesiredEthernet{Line: 16, FabricID: 1},
		VESWs: []api.DesiredVESW{{Line: 18, Name: "lab", ID: 5, PKey: "0x8001", Flood: true,
			PCP: []int{0, 1, 2, 3, 4, 5, 6, 7}, Ports: []api.DesiredVESWPort{{Line: 24, Port: "0200:0000:0001:0003",
				VPort: &zero, Number: 1, Gateway: true}}}},
		Groups: []api.DesiredGroup{{Line: 29, MGID: "ff12:401b:ffff::1", QKey: "0x00000b1b", MTU: 2048}},
		Node: &api.DesiredNode{Line: 33, GUID: "02aa:0000:0001:0000", Links: []api.DesiredLink{},
			Devices: []api.DesiredDevice{{Line: 35, Name: "vf1", Weight: 7, QoS: map[string]int{"3": 9},
				Quotas: map[string]int{"memory_bytes": 1 << 30}, Addresses: []string{"10.0.0.1/24"}}}},
	}
}

func TestWhole(t *testing.T) {
	got, err := Decode([]byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wholeDesired(), got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(whole, string(Encode(got))); diff != "" {
		t.Error(diff)
	}
}

func TestWrong(t *testing.T) {
	for _, x := range []struct{ text, want string }{
		{"", "line 1: the file is empty"},
		{"# nothing\n", "line 1: the file is empty"},
		{"- a\n", "line 1: the file is no list of sections such as partitions:"},
		{"version: 2\n", `line 1: version "2" of the format: this program reads version 1`},
		{"version: 1\nversion: 1\n", "line 2: version is there twice"},
		{"version: 1\n---\nversion: 1\n", "line 2: a second document"},
		{"partitions: []\npartition: []\n", `line 2: the file: "partition" is not known here; known are subnet, ` +
			"partitions, ethernet, vesws, groups, node"},
		{"partitions: []\nvesws: []\npartitions: []\n", `line 3: "partitions" is there twice: also in line 1`},
		{"partitions:\n", "line 1: partitions is a list, not nothing; an empty one is []"},
		{"subnet:\n", "line 1: subnet has names with values, not nothing"},
		{"partitions:\n  red: 1\n", "line 2: partitions is a list, not names with values; an empty one is []"},
		{"partitions:\n  - red\n", `line 2: an element of partitions has names with values, not "red"`},
		{"partitions:\n  - pkey: 0x1\n    pkey: 0x2\n", `line 3: "pkey" is there twice: also in line 2`},
		{"partitions:\n  - pkey: 0x1\n    key: 0x2\n",
			`line 3: an element of partitions: "key" is not known here; known are name, pkey, apart, members`},
		{"partitions:\n  - name: 5\n", `line 2: name is a text, not the number "5": write it in quotes`},
		{"partitions:\n  - pkey: 1.5\n", `line 2: pkey is a text, not the number "1.5": write it in quotes`},
		{"partitions:\n  - pkey: [1]\n", "line 2: pkey is a text, not a list"},
		{"partitions:\n  - apart: maybe\n", `line 2: apart is true or false, not "maybe"`},
		{"partitions:\n  - members: ALL\n", `line 2: members is a list, not "ALL"; an empty one is []`},
		{"vesws:\n  - name: lab\n    mtu: \"9000\"\n", `line 3: mtu is a number, not "9000"`},
		{"vesws:\n  - name: lab\n    mtu: 9e3\n", `line 3: mtu is a number, not "9e3"`},
		{"vesws:\n  - mtu: 99999999999999999999\n", `line 2: mtu is a number, not "99999999999999999999"`},
		{"node:\n  devices:\n    - qos: {a: 1, a: 2}\n", `line 3: qos: "a" is there twice`},
		{"node:\n  devices:\n    - qos: 3\n", `line 3: qos has names with numbers, not the number "3"`},
		{"node: &a\n  guid: 0x1\n", "line 1: node: anchors and aliases are not supported"},
		{"partitions:\n  - name: \"a\n", "line 2: found unexpected end of stream"},
		{"a: b: c\n", "line 1: mapping values are not allowed in this context"},
	} {
		_, err := Decode([]byte(x.text))
		if err == nil || err.Error() != x.want {
			t.Errorf("%q:\n got %v\nwant %s", x.text, err, x.want)
		}
	}
	if _, err := Decode(make([]byte, MaxSize+1)); err == nil || !strings.Contains(err.Error(), "the limit is") {
		t.Errorf("a large file: %v", err)
	}
}

func TestCompare(t *testing.T) {
	is, want := wholeDesired(), wholeDesired()
	if list := Compare(is, want, nil); len(list) != 0 {
		t.Errorf("of the same: %+v", list)
	}
	want.Subnet = nil // not stated
	want.Partitions = []api.DesiredPartition{{Name: "green", PKey: "0x8003", Apart: true},
		{Name: "rot", PKey: "0x8001", Members: []string{"ALL=limited", "0200:0000:0001:0003=limited"}}}
	want.VESWs[0].MTU, want.VESWs[0].ID = 9000, 0
	want.VESWs[0].Ports = nil
	want.Groups = []api.DesiredGroup{}
	want.Node.Devices[0].QoS = map[string]int{"3": 8}
	name := func(port string) string {
		if port == "0200:0000:0001:0003" {
			return "h weft_ib0"
		}
		return ""
	}
	got := Text(Compare(is, want, name))
	const expect = "- partition 7 (0x8002); + partition green (0x8003): apart true; partition rot (0x8001): name red → rot, " +
		"members + 0200:0000:0001:0003 (h weft_ib0)=limited, - 0200:0000:0001:0003 (h weft_ib0); " +
		"vesw lab: id 5 → the default, mtu 9000, ports - 0200:0000:0001:0003 (h weft_ib0) vport 0 number 1 gateway; " +
		"- group ff12:401b:ffff::1; device vf1: qos [3:9] → [3:8]"
	if diff := cmp.Diff(expect, got); diff != "" {
		t.Error(diff)
	}
	if got := Text(Compare(api.Desired{}, api.Desired{Partitions: []api.DesiredPartition{{PKey: "0x8001", Name: "a"}},
		Node: &api.DesiredNode{Links: []api.DesiredLink{{Device: "weft_ib0", PKeys: []string{"0x1"}}}}}, nil)); got !=
		"+ partition a (0x8001); + IP links of weft_ib0/0x8001" {
		t.Error(got)
	}
	ordered := wholeDesired()
	ordered.Partitions[0].Members = []string{"0200:0000:0001:0003", "ALL=limited"}
	if got := Text(Compare(is, ordered, nil)); got != "partition red (0x8001): members in another order" {
		t.Error(got)
	}
}

// FuzzDecode: what is read has a text that is read as the same, and every error but that of the size has a line of the
// file.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(whole))
	f.Add([]byte("partitions:\n  - {name: a, pkey: 0x1, members: [ALL, \"x=limited\"]}\n"))
	f.Add([]byte("a: &a [*a]\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := Decode(b)
		var wrong *Error
		if errors.As(err, &wrong) {
			if lines := strings.Count(string(b), "\n") + strings.Count(string(b), "\r") + 2; wrong.Line < 1 ||
				wrong.Line > lines+2*strings.Count(string(b), "\u0085")+2*strings.Count(string(b), "\u2028")+
					2*strings.Count(string(b), "\u2029") {
				t.Errorf("line %d of %d: %v", wrong.Line, lines, err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		text := Encode(d)
		again, err := Decode(text)
		if err != nil {
			t.Fatalf("%v:\n%s", err, text)
		}
		if second := Encode(again); string(second) != string(text) {
			t.Errorf("%s\nbecomes\n%s", text, second)
		}
		if list := Compare(d, again, nil); len(list) > 0 {
			t.Error(fmt.Sprint(list))
		}
	})
}

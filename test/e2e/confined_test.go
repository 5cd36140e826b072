// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	"weft/test/lab"
)

// TestConfinedMember: root of a member without roles reads the subnet and uses it, and cannot manage it, with Debian's
// programs and the M_Key of its own port; changes of the administrator reach every port all the same.
func TestConfinedMember(t *testing.T) {
	lab.NeedNetNS(t)
	needs(t, "opensm", "ibportstate", "smpquery")
	t.Parallel()
	r := newReader(t)
	r.hosts(3)
	r.must("host1", "weft up --detach", "weft: ready: ...")
	r.must("host1", "weft token", "weft join 10.0.0.1 --token ...")
	r.must("host2", "weft join 10.0.0.1 --token ...", "host2 is a member of fabric ...")
	r.must("host1", "weft token --role member", "weft join 10.0.0.1 --token ...")
	r.must("host3", "weft join 10.0.0.1 --token ...", "host3 is a member of fabric ...")
	for _, h := range []string{"host1", "host2", "host3"} {
		r.eventually(h, "weft status", "device weft_ib0: InfiniBand port ACTIVE ...", "trunks 2 of 2 up",
			"nothing is degraded")
	}
	works := func() {
		t.Helper()
		r.must("host1", "weft run -- ibv_rc_pingpong -d weft_ib0 &")
		r.must("host3", "weft run -- ibv_rc_pingpong -d weft_ib0 10.0.0.1", "1000 iters in ...")
	}
	works()
	r.eventually("host1", "weft sm", "m_key kept in the store, one for each port, ...")

	t.Log("it reads")
	r.must("host3", "weft run -- smpquery -C weft_ib0 portinfo -D 0,1", "LinkState:...Active")
	r.must("host2", "weft run -- smpquery -C weft_ib0 portinfo -D 0 | grep -w Lid: | tr -dc 0-9 >/run/lid")
	t.Log("it changes nothing, with whatever key")
	r.must("host3", "! weft run -- ibportstate -C weft_ib0 -y 0x1234 $(cat /run/lid) 1 mkeylease 0 mkey 0x1234")
	r.eventually("host3", "weft status", "degraded not_manager: ... to manage the subnet were refused, ...")
	t.Log("OpenSM, with a higher priority, neither")
	r.must("host3", "(weft run -- opensm -p 15 -f /run/opensm.log -g $(weft run -- ibstat -p weft_ib0 | head -1) "+
		">/dev/null 2>&1 &)")
	r.eventually("host3", "cat /run/opensm.log", "...ERR...")
	for _, h := range []string{"host1", "host2"} {
		r.must(h, "weft status", "nothing is degraded")
	}
	r.must("host1", "weft sm", "manager master, ...")

	t.Log("the administrator does")
	r.must("host1", "weft pkey add 0x8001 weft_ib0@host1 weft_ib0@host2 --yes")
	has := "weft run -- smpquery -C weft_ib0 pkeys -D 0 | grep -c 0x8001; true"
	r.eventually("host2", has, "1")
	r.must("host1", "weft pkey delete 0x8001 --yes")
	r.eventually("host2", has, "0")
	works()

	t.Log("of two trunks of host1, that to the member lets pass the P_Keys of its ports alone")
	ports := "for p in 35 36; do weft run -- smpquery -C weft_ib0 pkeys -D 0,1 $p; done | grep -c "
	r.must("host1", ports+"0xffff", "1")
	r.must("host1", "weft pkey add 0x8002 weft_ib0@host1 weft_ib0@host3 --yes")
	r.eventually("host1", ports+"0x8002", "1")
	r.must("host1", "weft pkey delete 0x8002 --yes")
	r.eventually("host1", ports+"0x8002; true", "0")
	works()
}

// TestOpenSMOfMembers: Debian's OpenSM manages a fabric of members from a host with the role manager: ports of members
// with and without roles come up, and programs work between them.
func TestOpenSMOfMembers(t *testing.T) {
	lab.NeedNetNS(t)
	needs(t, "opensm")
	t.Parallel()
	r := newReader(t)
	r.hosts(3)
	for _, h := range []string{"host1", "host2", "host3"} {
		r.must(h, "export WEFT_SM=external WEFT_STORE=embedded")
	}
	r.must("host1", "weft up --detach", "weft: ready: ...")
	r.must("host1", "weft token", "weft join 10.0.0.1 --token ...")
	r.must("host2", "weft join 10.0.0.1 --token ...", "host2 is a member of fabric ...")
	r.must("host1", "weft token --role member", "weft join 10.0.0.1 --token ...")
	r.must("host3", "weft join 10.0.0.1 --token ...", "host3 is a member of fabric ...")
	r.must("host2", "(weft run -- opensm -f /run/opensm.log -g $(weft run -- ibstat -p weft_ib0 | head -1) "+
		">/dev/null 2>&1 &)")
	for _, h := range []string{"host1", "host2", "host3"} {
		r.eventually(h, "weft status", "device weft_ib0: InfiniBand port ACTIVE ...", "trunks 2 of 2 up")
	}
	for h, at := range map[string]string{"host1": "10.0.0.2", "host2": "10.0.0.3", "host3": "10.0.0.1"} {
		server := "host" + at[len(at)-1:]
		r.must(server, "weft run -- ibv_rc_pingpong -d weft_ib0 &")
		r.must(h, "weft run -- ibv_rc_pingpong -d weft_ib0 "+at, "1000 iters in ...")
	}
}

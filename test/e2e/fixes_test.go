// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	"weft/test/lab"
)

// TestFixesFollowed: fixes that members print work when they are followed, on the member and on the master, and none
// names what is not known.
func TestFixesFollowed(t *testing.T) {
	lab.NeedNetNS(t)
	t.Parallel()
	r := newReader(t)
	r.hosts(3)
	r.found()
	for key, at := range map[string]string{"0x8001": "host1", "0x8002": "host2"} {
		link := "ib0_1_" + key[5:]
		r.must("host2", "weft ipoib add weft_ib0 --pkey "+key+" --addr 10.8."+key[5:]+".2/24")
		r.eventually("host2", "weft status", "... "+link+" is pending: ... fix: weft pkey add "+key+" weft_ib0@host2")
		r.must("host2", "weft status | sed -n 's/.*"+link+" is pending.* fix: //p' >/run/fix-"+key)
		r.must(at, "$(cat /run/fix-"+key+") --yes", "... "+key+" ...")
		r.eventually("host2", "weft ipoib list", link+" ... yes")
	}

	t.Log("a member that starts while another is away")
	r.must("host3", "weft down")
	r.must("host2", "weft down && weft up --detach", "weft: ready: ...")
	r.eventually("host2", "weft status", "... trunk_down: nothing is received from ...")
	r.must("host2", "weft status | grep -c invalid || true", "0")
	r.must("host2", "weft trunk | grep -c invalid || true", "0")
	r.must("host2", "weft wait --for=trunks --timeout 1s 2>&1 | grep -c -e --peer || true", "0")
}

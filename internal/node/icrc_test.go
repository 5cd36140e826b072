// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	"weft/internal/control/config"
	"weft/internal/proto/ib"
)

// TestICRCMode: the status shows how each device checks received packets.
func TestICRCMode(t *testing.T) {
	r := run(t, func(c *config.Config) { c.ICRC, c.Fabric, c.Store = config.ICRCSolve, true, config.StoreMemory })
	for _, d := range r.status().Devices {
		want := config.ICRCFull
		if d.LinkLayer == ib.LinkEthernet.String() {
			want = config.ICRCSolve
		}
		if d.ICRC != want || d.ICRCWhy == "" {
			t.Errorf("%s, %s: %s: %s", d.Name, d.LinkLayer, d.ICRC, d.ICRCWhy)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"strings"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/internal/control/config"
)

// TestMayBeMember: settings of a laboratory are refused at a member of a fabric, each by its name.
func TestMayBeMember(t *testing.T) {
	if err := mayBeMember(&config.Config{Fabric: true, Store: config.StoreAuto}, "this node"); err != nil {
		t.Error(err)
	}
	for flag, c := range map[string]config.Config{
		"--peer":           {Peers: []string{"10.0.0.2"}},
		"--trunk-key-file": {TrunkKeyFile: "/k"},
		"--store-listen":   {StoreListen: "http://10.0.0.1:2379"},
		"--store memory":   {Store: config.StoreMemory},
		"--idle-exit":      {IdleExit: time.Minute},
		"--fabric=false":   {Device: "-"},
	} {
		c.Fabric = c.Device == ""
		if c.Store == "" {
			c.Store = config.StoreAuto
		}
		err := mayBeMember(&c, "this node")
		var e *api.Error
		if !errors.As(err, &e) || !strings.HasSuffix(e.Fix, "without "+flag) || e.Why == "" {
			t.Errorf("%s: %v", flag, err)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"weft/internal/control/api"
)

// TestChangeNotTaken: a change of partitions that a port does not take is stored, and an error of the command, which
// names the port. A change that all ports take is in force when the command ends.
func TestChangeNotTaken(t *testing.T) {
	s := newSubnetOfTwo(t)
	ctx := context.Background()
	b := s.b.node
	port := func() (guid string) {
		b.sub.Do(func() { guid = b.sub.Port(1).Agent.Config().PortGUID.String() })
		return guid
	}()
	has := func() (keys int) {
		b.sub.Do(func() {
			for _, k := range b.sub.Port(1).Agent.PKeys(1) {
				if k&0x7fff == 0x123 {
					keys++
				}
			}
		})
		return keys
	}
	add := api.Partition{PKey: "0x8123", Members: []api.Member{{Port: port}}}
	del := api.PartitionMembers{PKey: "0x8123", Members: []string{port}}
	call := api.Confirm(ctx, api.ConfirmAll)
	if _, err := api.Call(call, s.a.cli, api.AddPartition, add); err != nil || has() != 1 {
		t.Fatalf("%v, the port has %d", err, has())
	}
	lock := func(key uint64) {
		b.sub.Do(func() {
			i := b.sub.Port(1).Agent.Port(1)
			i.MKey, i.MKeyProtectBits, i.MKeyLeasePeriod = key, 1, 0
		})
	}
	lock(0x666)
	err := api.Do(call, s.a.cli, api.DeletePartition, del)
	if text := fmt.Sprint(err); code(err) != api.CodeNotApplied || !strings.Contains(text, port) ||
		!strings.Contains(text, "M_Key") {
		t.Errorf("%v", err)
	}
	if has() != 1 {
		t.Error("the port has taken it")
	}
	lock(0x123456789abcdef0)
	if _, err := api.Call(call, s.a.cli, api.AddPartition, api.Partition{PKey: "0x8124",
		Members: []api.Member{{Port: port}}}); err != nil || has() != 0 {
		t.Errorf("%v, the port has %d", err, has())
	}
}

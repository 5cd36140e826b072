// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"weft/internal/mgmt/agent"
	"weft/internal/proto/mad"
	"weft/internal/verbs/hca"
)

// Counted are the counters of a port as performance management reports them.
type Counted struct {
	Counters mad.PortCounters
	Extended mad.PortCountersExtended
}

// AllCounted returns the counters of the InfiniBand ports of functions, by the number of the function: what the agents of
// the ports would answer for these counts. A function without such a port is not in the map. No lane may call it, nor
// the management goroutine.
func AllCounted(s *Subnet, counts []hca.FunctionCounters) (map[uint16]Counted, error) {
	list := map[uint16]Counted{}
	err := s.Do(func() {
		for n, p := range s.Functions {
			if p.underlay != nil || int(n) >= len(counts) {
				continue
			}
			var c agent.Counts
			addPort(&c, &counts[n].Port)
			v, x := p.Agent.Counted(1, &c)
			list[n] = Counted{v, x}
		}
	})
	return list, err
}

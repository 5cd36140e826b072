// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"slices"

	"weft/internal/service/cm"
)

// space is the ports of a port space, and the identifiers bound to each.
type space struct {
	ports map[uint16][]*id
}

// Ephemeral ports, and privileged ports.
const (
	firstPort   = 32768
	lastPort    = 60999
	privileged  = 1024
	maxOnAPort  = 1024 // identifiers bound to one port
	searchPorts = lastPort - firstPort + 1
)

func (h *Hub) space(s cm.PortSpace) *space {
	if h.spaces[s] == nil {
		h.spaces[s] = &space{ports: map[uint16][]*id{}}
	}
	return h.spaces[s]
}

// claim binds i to the port of its source address, or to one that is free where it has
// none.
func (h *Hub) claim(i *id) Errno {
	s := h.space(i.ps)
	if i.src.port == 0 {
		at := h.rnd.IntN(searchPorts)
		for k := range searchPorts {
			p := uint16(firstPort + (at+k)%searchPorts)
			if len(s.ports[p]) == 0 {
				i.src.port = p
				s.ports[p] = append(s.ports[p], i)
				i.claimed = true
				return OK
			}
		}
		h.Stats.DropPorts++
		return EADDRNOTAVAIL
	}
	if i.src.port < privileged && !i.file.owner.Low {
		return EACCES
	}
	if err := s.conflict(i); err != OK {
		return err
	}
	if len(s.ports[i.src.port]) >= maxOnAPort {
		h.Stats.DropPorts++
		return EADDRINUSE
	}
	s.ports[i.src.port] = append(s.ports[i.src.port], i)
	i.claimed = true
	return OK
}

// conflict returns why i cannot share the port of its source address with the identifiers bound to it.
func (s *space) conflict(i *id) Errno {
	for _, o := range s.ports[i.src.port] {
		switch {
		case o == i, i.reuse && o.reuse && (i.state != stateListen || o.state != stateListen):
			continue
		case i.src.addr.Is4() != o.src.addr.Is4() && (i.v6only() || o.v6only()):
			continue
		case i.src.any() || o.src.any():
			return EADDRINUSE
		case i.src.addr == o.src.addr:
			return EADDRINUSE
		}
	}
	return OK
}

// v6only reports whether i, of IPv6, keeps to that.
func (i *id) v6only() bool { return i.src.addr.Is6() && i.afOnly }

// release gives the port back.
func (h *Hub) release(i *id) {
	if !i.claimed {
		return
	}
	i.claimed = false
	s := h.spaces[i.ps]
	l := slices.DeleteFunc(s.ports[i.src.port], func(o *id) bool { return o == i })
	if len(l) == 0 {
		delete(s.ports, i.src.port)
	} else {
		s.ports[i.src.port] = l
	}
}

// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"net/netip"
	"strconv"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/service/cm"
)

// bind gives an identifier its address: one of a port, or the unspecified one.
func (i *id) bind(e endpoint) Errno {
	if i.state != stateIdle || i.passive {
		return EINVAL
	}
	if !e.addr.IsValid() {
		return EAFNOSUPPORT
	}
	if i.qpType != ib.RC && i.qpType != ib.UC && i.qpType != ib.UD {
		return EINVAL
	}
	var addr *cm.Address
	if !e.any() {
		a, err := i.hub.net.Addresses.Bound(e.addr)
		if err != nil {
			return errno(err)
		}
		// A loopback address is of no device until it is known that the peer is on
		// this host: programs that look for a device would offer it to other hosts.
		if !e.addr.IsLoopback() {
			addr = &a
		}
	}
	was := i.src
	i.src = e
	if err := i.hub.claim(i); err != OK {
		i.src = was
		return err
	}
	i.addr, i.state = addr, stateAddrBound
	return OK
}

// resolveAddr finds the way to the peer.
func (i *id) resolveAddr(src, dst endpoint) Errno {
	switch {
	case !dst.addr.IsValid():
		return EAFNOSUPPORT
	case src.addr.IsValid() && src.addr.Is4() != dst.addr.Is4():
		return EINVAL
	}
	if i.state == stateIdle {
		if !src.addr.IsValid() {
			src.addr = netip.IPv6Unspecified()
			if dst.addr.Is4() {
				src.addr = netip.IPv4Unspecified()
			}
		}
		if err := i.bind(src); err != OK {
			return err
		}
	}
	if i.state != stateAddrBound || i.src.addr.Is4() != dst.addr.Is4() {
		return EINVAL
	}
	i.dst, i.state = dst, stateAddrQuery
	i.pending++
	from, name := i.src.addr, i.pending
	if i.src.any() {
		from = netip.Addr{}
	}
	// To the unspecified address means to oneself, as it does for sockets.
	to := dst.addr
	if dst.any() {
		if to = i.src.addr; i.src.any() {
			to = netip.IPv6Loopback()
			if dst.addr.Is4() {
				to = netip.AddrFrom4([4]byte{127, 0, 0, 1})
			}
		}
		i.dst.addr = to
	}
	if dst.scope != 0 && (to.IsLinkLocalUnicast() || to.IsLinkLocalMulticast()) {
		to = to.WithZone(strconv.FormatUint(uint64(dst.scope), 10))
	}
	i.hub.net.Addresses.ResolveAddr(i.hub.now, from, to, func(now mono.Time, a cm.Address, err error) {
		if i.dead || i.pending != name {
			return
		}
		i.hub.now = now
		if err != nil {
			i.state = stateAddrBound
			i.queue(&event{kind: evAddrError, status: status(errno(err))})
			return
		}
		i.addr, i.state = &a, stateAddrResolved
		if i.src.any() {
			i.src.addr, i.src.scope = a.Src, dst.scope
		}
		i.queue(&event{kind: evAddrResolved})
	})
	return OK
}

// resolveRoute finds the path to the peer.
func (i *id) resolveRoute() Errno {
	if i.state != stateAddrResolved {
		return EINVAL
	}
	i.state = stateRouteQuery
	i.pending++
	name := i.pending
	i.hub.net.Addresses.ResolvePath(i.hub.now, i.addr, i.tos, func(now mono.Time, p cm.Path, err error) {
		if i.dead || i.pending != name {
			return
		}
		i.hub.now = now
		if err != nil {
			i.state = stateAddrResolved
			i.queue(&event{kind: evRouteError, status: status(errno(err))})
			return
		}
		i.path, i.state = &p, stateRouteResolved
		i.queue(&event{kind: evRouteResolved})
	})
	return OK
}

// Levels and names of options.
const (
	levelID, levelIB = 0, 1

	optionTOS, optionReuse, optionAFOnly, optionAckTimeout = 0, 1, 2, 3

	optionPath = 1
)

func (i *id) setOption(level, name uint32, v []byte) Errno {
	switch {
	case level == levelID && (name == optionTOS || name == optionAckTimeout):
		if len(v) != 1 {
			return EINVAL
		}
	case level == levelID && (name == optionReuse || name == optionAFOnly):
		if len(v) != 4 {
			return EINVAL
		}
	case level == levelIB && name == optionPath:
		return i.setPath(v)
	default:
		return ENOSYS
	}
	switch name {
	case optionTOS:
		i.tos = v[0]
	case optionAckTimeout:
		if v[0] > 31 || i.qpType != ib.RC {
			return EINVAL
		}
		i.ackTimeout, i.ackTimeoutSet = v[0], true
	case optionReuse:
		on := le.Uint32(v) != 0
		if on && i.state != stateIdle && !i.reuse {
			return EINVAL
		}
		i.reuse = on
	case optionAFOnly:
		if i.state != stateIdle && i.state != stateAddrBound {
			return EINVAL
		}
		i.afOnly, i.afOnlySet = le.Uint32(v) != 0, true
	}
	return OK
}

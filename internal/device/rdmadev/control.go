// SPDX-License-Identifier: Apache-2.0

package rdmadev

import (
	"math/bits"
	"syscall"

	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/verbs/hca"
	"weft/internal/verbs/transport"
)

// command is one control command: the size of its request and of its result,
// and what executes it. res is zeroed and of exactly the result's size.
type command struct {
	req, res int
	ext      uint64 // extension bit that must be enabled; 0: part of the RFC
	run      func(d *Device, req, res []byte) error
	// tail marks a command with data behind the request.
	tail bool
	// grow is the larger result that a client with WEFT_VERBS may take.
	grow int
}

const (
	extAtomic = 1 << abi.CapAtomic
	extMemMgt = 1 << abi.CapMemMgt
	extMW     = 1 << abi.CapMW
	extSRQ    = 1 << abi.CapSRQ
	extEVQ    = 1 << abi.CapAsyncEVQ
	extErrno  = 1 << abi.CapErrnoAck
	extSGWQE  = 1 << abi.CapSGWQE
	extArm    = 1 << abi.CapArmDoorbell
	extVerbs  = 1 << abi.CapVerbs

	extMcast    = 1 << abi.CapMcast
	extPortAttr = 1 << abi.CapPortAttr
	extQPAttr   = 1 << abi.CapQPAttr
	extCQResize = 1 << abi.CapCQResize
	// partsOfVerbs are what WEFT_VERBS includes: of use to any driver, while the rest of WEFT_VERBS needs a program.
	partsOfVerbs = extMcast | extPortAttr | extQPAttr | extCQResize

	extAtomicWrite = 1 << abi.CapAtomicWrite
	extSRQResize   = 1 << abi.CapSRQResize
)

// parsed adapts a handler of a decoded request.
func parsed[T any](parse func([]byte) (T, error), run func(d *Device, v T, res []byte) error) func(*Device, []byte,
	[]byte) error {
	return func(d *Device, req, res []byte) error {
		v, err := parse(req)
		if err != nil {
			return syscall.EINVAL
		}
		return run(d, v, res)
	}
}

func put(res, encoded []byte) { copy(res, encoded) }

// Execute runs one control command of the RoCE class and returns the answer, ack first, at most room octets, which is
// valid until the next call; nil if room is 0. command holds class, command and data; it is a private copy. behind
// returns a copy of the n octets of guest memory that follow the command in the guest's physical memory, or nil if they
// are not in the same region as its last octet: the list of pages of a REG_USER_MR in the short form.
func (d *Device) Execute(command []byte, room int, behind func(n int) []byte) []byte {
	d.Stats.Commands++
	if room == 0 {
		d.Stats.CtrlNoRoom++
		return nil
	}
	if d.dead {
		return append(d.answer[:0], abi.AckErr)
	}
	out := append(d.answer[:0], abi.AckOK)
	err := refuse(errFraming, "%d octets of class and command, need 2", len(command))
	if len(command) >= 2 {
		if err = refuse(errCommand, "class %d is not %d", command[0], abi.ClassRoCE); command[0] == abi.ClassRoCE {
			d.after = behind
			out, err = d.command(abi.Cmd(command[1]), command[2:], room-1)
			d.after = nil
		}
	}
	if err == nil {
		return out
	}
	e := d.refusal(command, err)
	ack := byte(abi.AckErr)
	if d.ext&extErrno != 0 && e < 256 {
		ack = byte(e)
	}
	return append(d.answer[:0], ack)
}

func (d *Device) command(n abi.Cmd, data []byte, room int) ([]byte, error) {
	c, ok := commands[n]
	if !ok {
		return nil, refuse(errCommand, "there is no command %d", uint8(n))
	}
	if c.ext&^d.ext != 0 {
		return nil, refuse(errCommand, "needs the extension of bit %d of device_cap_flags, which is not enabled",
			bits.TrailingZeros64(c.ext))
	}
	size := c.res
	if c.grow != 0 && d.ext&extVerbs != 0 && room >= c.grow {
		size = c.grow
	}
	if len(data) < c.req {
		return nil, refuse(errFraming, "a request of %d octets, need %d", len(data), c.req)
	}
	if room < size {
		return nil, refuse(errFraming, "room for a result of %d octets, need %d", room, size)
	}
	if !c.tail {
		data = data[:c.req]
	}
	out := d.answer[:1+size]
	clear(out)
	return out, c.run(d, data, out[1:])
}

func (d *Device) register(pdn uint32, r *mem.Region, res []byte) error {
	m, err := d.sess.RegisterMR(pdn, r)
	put(res, abi.MRResult{MRN: m.Handle, LKey: m.LKey, RKey: m.RKey}.Append(nil))
	return err
}

// optionalAccess are access flags that may be ignored (verbs: bits 20 to 29).
const optionalAccess ib.Access = 0x3ff00000

// regionVA makes a region of memory that the client names by its own address.
func (d *Device) regionVA(va, length, iova uint64, access ib.Access) (*mem.Region, error) {
	if length != 0 && va+length-1 < va {
		return nil, syscall.EINVAL
	}
	space := d.guest.Space
	if length != 0 && !d.guest.Contains(va, length) {
		if d.proc == nil {
			return nil, syscall.EPERM
		}
		space = d.proc
	}
	access &^= optionalAccess
	if access&ib.ZeroBased != 0 && iova != 0 {
		return nil, syscall.EINVAL
	}
	return &mem.Region{Space: space, Start: iova, Base: va, Len: length, Access: access}, nil
}

func (d *Device) reregMR(v abi.ReregMR, res []byte) error {
	m, err := d.sess.ReregisterMR(v.MRN, v.Flags, v.PDN, func(old *mem.Region) (*mem.Region, error) {
		access := old.Access
		if v.Flags&abi.ReregAccess != 0 {
			access = v.Access &^ optionalAccess
		}
		if v.Flags&abi.ReregTranslation != 0 {
			return d.regionVA(v.VA, v.Length, v.IOVA, access)
		}
		return &mem.Region{Space: old.Space, Start: old.Start, Len: old.Len, Base: old.Base, Access: access,
			Pages: old.Pages, PageShift: old.PageShift, FirstOff: old.FirstOff}, nil
	})
	put(res, abi.MRResult{MRN: m.Handle, LKey: m.LKey, RKey: m.RKey}.Append(nil))
	return err
}

const maxPages = 262144

// regUserMR registers guest memory by its list of pages. The RFC does not
// state the page size: it is the smallest that makes the count right.
func (d *Device) regUserMR(req, res []byte) error {
	v, err := abi.ParseRegUserMR(req[:abi.RegUserMRSize])
	if err != nil {
		return syscall.EINVAL
	}
	list := req[abi.RegUserMRSize:]
	if v.Length == 0 || v.VirtAddr+v.Length-1 < v.VirtAddr {
		return refuse(syscall.EINVAL, "length %d from virtual address %#x", v.Length, v.VirtAddr)
	}
	if v.NPages == 0 || v.NPages > maxPages {
		return refuse(syscall.EINVAL, "%d pages, a region has 1 to %d", v.NPages, maxPages)
	}
	if len(list) == 0 && d.after != nil {
		// The short form: the driver's descriptor ends with the fixed part, and the list follows it in memory.
		list = d.after(8 * int(v.NPages))
	}
	if uint64(len(list)) < uint64(v.NPages)*8 {
		return refuse(syscall.EINVAL, "%d octets of page list for %d pages, need %d", len(list), v.NPages, 8*v.NPages)
	}
	r := &mem.Region{Space: d.guest.Space, Start: v.VirtAddr, Len: v.Length, Access: v.AccessFlags}
	var ok bool
	if r.PageShift, r.FirstOff, ok = hca.PageShift(v.VirtAddr, v.Length, v.NPages); !ok {
		return refuse(syscall.EINVAL, "%d pages for %d octets from %#x: no page size gives that number", v.NPages,
			v.Length, v.VirtAddr)
	}
	page := uint64(1) << r.PageShift
	r.Pages = make([]uint64, v.NPages)
	left := r.FirstOff + v.Length
	for i := range r.Pages {
		p := le64(list[i*8:])
		if p&(page-1) != 0 {
			return refuse(syscall.EINVAL, "page %d at %#x is not aligned to %d", i, p, page)
		}
		if !d.guest.Contains(p, min(page, left)) {
			return refuse(syscall.EFAULT, "page %d at %#x is not in the memory of the guest", i, p)
		}
		r.Pages[i] = p
		left -= min(page, left)
	}
	return d.register(v.PDN, r, res)
}

// pageSpace returns the session's PageSpace: either all pages lie in announced memory, or they are
// addresses of the process.
func (d *Device) pageSpace(pages []uint64, shift uint8, last uint64) mem.Space {
	announced := true
	for i, p := range pages {
		n := uint64(1) << shift
		if i == len(pages)-1 {
			n = last
		}
		if p+n-1 < p {
			return nil
		}
		announced = announced && d.guest.Contains(p, n)
	}
	switch {
	case announced:
		return d.guest.Space
	case d.proc != nil:
		return d.proc
	}
	return nil
}

func ahAttr(v *abi.AHAttr, global bool) *hca.AHAttr {
	return &hca.AHAttr{DGID: v.DGID, FlowLabel: v.FlowLabel, SGIDIndex: v.SGIDIndex, HopLimit: v.HopLimit,
		TrafficClass: v.TrafficClass, DMAC: v.DMAC, Global: global}
}

// handleAttr is the address vector of CREATE_AH: clients with QP_ATTR state
// the rest of it where the RFC has reserved octets.
func (d *Device) handleAttr(v *abi.AHAttr) *hca.AHAttr {
	a := ahAttr(v, true)
	if d.ext&extQPAttr != 0 {
		a.Global, a.SL, a.SrcPathBits, a.DLID, a.StaticRate = v.Flags&abi.AHNoGRH == 0, v.SL, v.SrcPathBits, v.DLID, v.StaticRate
	}
	return a
}

// explainAV returns err, the refusal of an address vector, with the reason in words if the reason is known.
func explainAV(d *Device, v *hca.AHAttr, err error) error {
	if err != error(syscall.EINVAL) || d.adapter.Port().Link != ib.LinkEthernet {
		return err // it has words, or an errno that says enough
	}
	sgid, none := d.sess.GID(uint32(v.SGIDIndex))
	switch {
	case none != nil:
		return refuse(err, "sgid_index %d: the entry of the GID table is empty", v.SGIDIndex)
	case v.DGID.IsZero():
		return refuse(err, "dgid is zero")
	case !v.Global:
		return refuse(err, "no GRH: packets of an Ethernet port have addresses")
	case sgid.IsIPv4() != v.DGID.IsIPv4():
		return refuse(err, "no way from %v to %v: one address is IPv4, the other IPv6", sgid, v.DGID)
	case v.DMAC[0]&1 != 0 && !v.DGID.IsMulticast():
		return refuse(err, "dmac % x is a group's, dgid %v is not", v.DMAC, v.DGID)
	}
	return err
}

func abiAH(v *hca.AHAttr) abi.AHAttr {
	return abi.AHAttr{DGID: v.DGID, FlowLabel: v.FlowLabel, SGIDIndex: v.SGIDIndex, HopLimit: v.HopLimit,
		TrafficClass: v.TrafficClass, DMAC: v.DMAC}
}

func (d *Device) membership(v abi.AttachMcast, change func(*hca.QP, ib.GID, ib.LID) error) error {
	q, err := d.sess.QP(v.QPN)
	if err != nil {
		return err
	}
	return change(q, v.GID, v.MLID)
}

func transportCap(c abi.QPCap) transport.Cap {
	return transport.Cap{MaxSendWR: c.MaxSendWR, MaxRecvWR: c.MaxRecvWR, MaxSendSGE: c.MaxSendSGE,
		MaxRecvSGE: c.MaxRecvSGE, MaxInline: c.MaxInlineData}
}

func abiCap(c transport.Cap) abi.QPCap {
	return abi.QPCap{MaxSendWR: c.MaxSendWR, MaxRecvWR: c.MaxRecvWR, MaxSendSGE: c.MaxSendSGE,
		MaxRecvSGE: c.MaxRecvSGE, MaxInlineData: c.MaxInline}
}

func (d *Device) createQP(v abi.CreateQP, res []byte) error {
	c := hca.QPConfig{Type: v.QPType, PD: v.PDN, SendCQ: v.SendCQN, RecvCQ: v.RecvCQN, Cap: transportCap(v.Cap),
		SigAll: v.SQSigAll != 0}
	if d.ext&extSRQ != 0 {
		c.SRQ = v.SRQN1
	}
	flags := uint32(0) // that an extension gave a meaning; without one they are reserved, and ignored
	if d.ext&extSGWQE != 0 {
		flags |= abi.QPSGWQE
	}
	if d.ext&extMcast != 0 {
		flags |= abi.QPBlockSelfMcast
	}
	if flags != 0 && v.QPFlags&^flags != 0 {
		return refuse(syscall.EINVAL, "flags %#x, of which %#x exist", v.QPFlags, flags)
	}
	compact := v.QPFlags&flags&abi.QPSGWQE != 0
	c.BlockSelf = v.QPFlags&flags&abi.QPBlockSelfMcast != 0
	l := d.limits()
	if !compact {
		l.Inline = min(l.Inline, abi.MaxInlineRFC)
	}
	for _, x := range []struct {
		name     string
		is, most uint32
	}{{"max_send_wr", c.Cap.MaxSendWR, l.QPWR}, {"max_recv_wr", c.Cap.MaxRecvWR, l.QPWR},
		{"max_send_sge", c.Cap.MaxSendSGE, l.SGE}, {"max_recv_sge", c.Cap.MaxRecvSGE, l.SGE},
		{"max_inline_data", c.Cap.MaxInline, l.Inline}} {
		if x.is > x.most {
			return refuse(syscall.EINVAL, "%s %d, at most %d", x.name, x.is, x.most)
		}
	}
	q, err := d.sess.CreateQP(&c)
	if err == error(syscall.EOPNOTSUPP) {
		return refuse(err, "a queue pair of type %v", v.QPType)
	}
	if err != nil {
		return err
	}
	d.bindSend(q, compact)
	if c.SRQ == 0 {
		d.bindRecv(q)
	}
	if len(res) == abi.CreateQPResultExSize {
		put(res, abi.CreateQPResultEx{QPN: q.Slot(), WireQPN: q.Num()}.Append(nil))
	} else {
		put(res, abi.CreateQPResult{QPN: q.Slot()}.Append(nil))
	}
	return nil
}

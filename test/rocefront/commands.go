// SPDX-License-Identifier: Apache-2.0

package rocefront

import "encoding/binary"

// ClassRoCE is VIRTIO_NET_CTRL_ROCE.
const ClassRoCE = 6

// Commands of the class, VIRTIO_NET_CTRL_ROCE_*.
const (
	CmdQueryDevice = iota
	CmdQueryPort
	CmdCreateCQ
	CmdDestroyCQ
	CmdCreatePD
	CmdDestroyPD
	CmdGetDMAMR
	CmdRegUserMR
	CmdDeregMR
	CmdCreateQP
	CmdModifyQP
	CmdQueryQP
	CmdDestroyQP
	CmdCreateAH
	CmdDestroyAH
	CmdAddGID
	CmdDelGID
	CmdReqNotifyCQ
)

// RCRNRNakGen is VIRTIO_IB_DEVICE_RC_RNR_NAK_GEN of DeviceAttr.Caps.
const RCRNRNakGen = 1 << 0

// DeviceAttr is struct virtio_rdma_ack_query_device.
type DeviceAttr struct {
	Caps, MaxMRSize, PageSizes                                 uint64
	HWVer, MaxQPWR, MaxSendSGE, MaxRecvSGE, MaxSGERead, MaxCQE uint32
	MaxMR, MaxPD, MaxQPRdAtom, MaxQPInitRdAtom, MaxAH          uint32
	LocalCAAckDelay                                            uint8
	Padding                                                    [3]uint8
	Reserved                                                   [14]uint32
}

// PortAttr is struct virtio_rdma_ack_query_port.
type PortAttr struct {
	GIDTableLen, MaxMsgSize uint32
	Reserved                [6]uint32
}

// Access flags, enum virtio_ib_access_flags.
const (
	LocalWrite = 1 << iota
	RemoteWrite
	RemoteRead
)

type regUserMR struct {
	PDN, Access      uint32
	VirtAddr, Length uint64
	NPages, Padding  uint32
}

type ackMR struct{ MRN, LKey, RKey uint32 }

// QPCap is struct virtio_rdma_qp_cap.
type QPCap struct {
	MaxSendWR, MaxRecvWR, MaxSendSGE, MaxRecvSGE, MaxInline, Padding uint32
}

// Types of queue pairs, VIRTIO_IB_QPT_*.
const (
	SMI = iota
	GSI
	RC
	UC
	UD
)

// QPInit is struct virtio_rdma_cmd_create_qp.
type QPInit struct {
	PDN            uint32
	Type, SigAll   uint8
	Padding        [2]uint8
	SendCQ, RecvCQ uint32
	Cap            QPCap
	Reserved       [4]uint32
}

// GlobalRoute is struct virtio_rdma_global_route.
type GlobalRoute struct {
	DGID                                       [16]byte
	FlowLabel                                  uint32
	SGIDIndex, HopLimit, TrafficClass, Padding uint8
}

// AHAttr is struct virtio_rdma_ah_attr.
type AHAttr struct {
	Route    GlobalRoute
	DMAC     [6]byte
	Reserved [10]byte
}

// Attributes of a queue pair, enum virtio_ib_qp_attr_mask.
const (
	AttrState = 1 << iota
	AttrCurState
	AttrAccess
	AttrQKey
	AttrAV
	AttrPathMTU
	AttrTimeout
	AttrRetryCnt
	AttrRNRRetry
	AttrRQPSN
	AttrMaxRdAtomic
	AttrMinRNRTimer
	AttrSQPSN
	AttrMaxDestRdAtomic
	AttrCap
	AttrDestQPN
	AttrRateLimit
)

// States of a queue pair, enum virtio_ib_qp_state.
const (
	Reset = iota
	Init
	RTR
	RTS
	SQD
	SQE
	Err
)

// Path MTUs, enum virtio_ib_mtu.
const (
	MTU256 = 1 + iota
	MTU512
	MTU1024
	MTU2048
	MTU4096
)

// QPFields are the fields that the structures of MODIFY_QP and QUERY_QP end with.
type QPFields struct {
	MaxRdAtomic, MaxDestRdAtomic                  uint8
	MinRNRTimer, Timeout, RetryCnt, RNRRetry      uint8
	Padding                                       [7]uint8
	QKey, RQPSN, SQPSN, DestQPN, Access, RateKbps uint32
	Cap                                           QPCap
	AH                                            AHAttr
	Reserved                                      [4]uint32
}

// QPAttr is struct virtio_rdma_cmd_modify_qp.
type QPAttr struct {
	QPN, Mask                uint32
	State, CurState, PathMTU uint8
	QPFields
}

// QPState is struct virtio_rdma_ack_query_qp.
type QPState struct {
	State, PathMTU, Draining uint8
	QPFields
}

type createAH struct {
	PDN, Padding uint32
	Attr         AHAttr
}

type addGID struct {
	Index   uint16
	Padding [3]uint16
	GID     [16]byte
}

// Flags of REQ_NOTIFY_CQ.
const (
	NotifySolicited = 1 << 0
	NotifyNext      = 1 << 1
)

// none is the result of a command without ack-specific data.
type none struct{}

// words are le32 fields: most commands have nothing else.
type words []uint32

// roce sends a command of the class, and returns its result of type T.
func roce[T any](d *Device, command byte, arg any) (v T, err error) {
	var data []byte
	if arg != nil {
		data = encode(arg)
	}
	b, err := d.Command(ClassRoCE, command, data, binary.Size(v))
	if err != nil {
		return v, err
	}
	return v, decode(b, &v)
}

// Words sends a command with le32 fields as its data.
func (d *Device) Words(command byte, result int, fields ...uint32) ([]byte, error) {
	return d.Command(ClassRoCE, command, encode(fields), result)
}

// QueryDevice is QUERY_DEVICE.
func (d *Device) QueryDevice() (DeviceAttr, error) { return roce[DeviceAttr](d, CmdQueryDevice, nil) }

// QueryPort is QUERY_PORT.
func (d *Device) QueryPort() (PortAttr, error) { return roce[PortAttr](d, CmdQueryPort, nil) }

// AddGID is ADD_GID.
func (d *Device) AddGID(index int, gid [16]byte) error {
	_, err := roce[none](d, CmdAddGID, addGID{Index: uint16(index), GID: gid})
	return err
}

// DelGID is DEL_GID.
func (d *Device) DelGID(index int) error {
	_, err := roce[none](d, CmdDelGID, uint16(index))
	return err
}

// PD is a protection domain.
type PD struct {
	dev    *Device
	Handle uint32
}

// PD returns a domain by its handle, which may be of no domain.
func (d *Device) PD(handle uint32) *PD { return &PD{d, handle} }

// CreatePD is CREATE_PD.
func (d *Device) CreatePD() (*PD, error) {
	n, err := roce[uint32](d, CmdCreatePD, nil)
	return &PD{d, n}, err
}

// Destroy is DESTROY_PD.
func (p *PD) Destroy() error {
	_, err := roce[none](p.dev, CmdDestroyPD, p.Handle)
	return err
}

// AH is an address handle.
type AH struct {
	pd     *PD
	Handle uint32
}

// CreateAH is CREATE_AH.
func (p *PD) CreateAH(a AHAttr) (*AH, error) {
	n, err := roce[uint32](p.dev, CmdCreateAH, createAH{PDN: p.Handle, Attr: a})
	return &AH{p, n}, err
}

// Destroy is DESTROY_AH.
func (a *AH) Destroy() error {
	_, err := roce[none](a.pd.dev, CmdDestroyAH, words{a.pd.Handle, a.Handle})
	return err
}

// MR is a memory region and the guest memory behind it.
type MR struct {
	pd           *PD
	Handle       uint32
	LKey, RKey   uint32
	Addr, Length uint64   // the range that work requests name
	pages        []uint64 // nil: Addr is guest-physical
}

// DMA is GET_DMA_MR: addresses of work requests are guest-physical ones. The region that DMA returns is size octets of
// new memory; its keys are good for all memory.
func (p *PD) DMA(size int, access uint32) (*MR, error) {
	ack, err := roce[ackMR](p.dev, CmdGetDMAMR, words{p.Handle, access})
	if err != nil {
		return nil, err
	}
	return &MR{pd: p, Handle: ack.MRN, LKey: ack.LKey, RKey: ack.RKey, Addr: p.dev.Memory.Alloc(size),
		Length: uint64(size)}, nil
}

// Registration is what REG_USER_MR registers.
type Registration struct {
	Addr, Length uint64
	Access       uint32
	Pages        []uint64
	// Behind leaves the page list out of the command's data: it is in guest memory directly behind them, as the driver
	// of the RFC's authors has it.
	Behind bool
}

// Register is REG_USER_MR.
func (p *PD) Register(r Registration) (*MR, error) {
	data := encode(regUserMR{PDN: p.Handle, Access: r.Access, VirtAddr: r.Addr, Length: r.Length,
		NPages: uint32(len(r.Pages))})
	list, behind := encode(r.Pages), []byte(nil)
	if r.Behind {
		behind = list
	} else {
		data = append(data, list...)
	}
	b, err := p.dev.command(ClassRoCE, CmdRegUserMR, data, behind, binary.Size(ackMR{}))
	if err != nil {
		return nil, err
	}
	var ack ackMR
	if err := decode(b, &ack); err != nil {
		return nil, err
	}
	return &MR{pd: p, Handle: ack.MRN, LKey: ack.LKey, RKey: ack.RKey, Addr: r.Addr, Length: r.Length,
		pages: r.Pages}, nil
}

// RegisterNew registers length octets of new pages, which are scattered, at an address.
func (p *PD) RegisterNew(addr uint64, length int, access uint32) (*MR, error) {
	n := (int(addr%pageSize) + length + pageSize - 1) / pageSize
	return p.Register(Registration{Addr: addr, Length: uint64(length), Access: access, Pages: p.dev.Memory.Pages(n)})
}

// Deregister is DEREG_MR.
func (m *MR) Deregister() error {
	_, err := roce[none](m.pd.dev, CmdDeregMR, m.Handle)
	return err
}

// SGE returns an element of a scatter/gather list.
func (m *MR) SGE(at, size int) SGE { return SGE{m.Addr + uint64(at), uint32(size), m.LKey} }

// pieces calls f with the parts of guest memory behind a range.
func (m *MR) pieces(at, size int, f func(b []byte)) {
	for size > 0 {
		n, guest := size, m.Addr+uint64(at)
		if m.pages != nil {
			from := int(m.Addr%pageSize) + at
			n, guest = min(size, pageSize-from%pageSize), m.pages[from/pageSize]+uint64(from%pageSize)
		}
		f(m.pd.dev.Memory.Bytes(guest, n))
		at, size = at+n, size-n
	}
}

// Put writes to the region's memory.
func (m *MR) Put(at int, b []byte) {
	m.pieces(at, len(b), func(to []byte) { b = b[copy(to, b):] })
}

// Get reads the region's memory.
func (m *MR) Get(at, size int) []byte {
	b := make([]byte, 0, size)
	m.pieces(at, size, func(from []byte) { b = append(b, from...) })
	return b
}

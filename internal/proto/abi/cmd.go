// SPDX-License-Identifier: Apache-2.0

package abi

import (
	"encoding/binary"
	"fmt"
)

// Cmd is a control command of class ClassRoCE.
type Cmd uint8

type cmdInfo struct {
	name     string
	req, res int
	ext      uint8 // bit number of the capability it needs; 0 = none
}

var cmdTable = [...]cmdInfo{
	CmdQueryDevice: {name: "QUERY_DEVICE", res: QueryDeviceResultSize},
	CmdQueryPort:   {name: "QUERY_PORT", res: QueryPortResultSize},
	CmdCreateCQ:    {name: "CREATE_CQ", req: CreateCQSize, res: CreateCQResultSize},
	CmdDestroyCQ:   {name: "DESTROY_CQ", req: DestroyCQSize},
	CmdCreatePD:    {name: "CREATE_PD", res: CreatePDResultSize},
	CmdDestroyPD:   {name: "DESTROY_PD", req: DestroyPDSize},
	CmdGetDMAMR:    {name: "GET_DMA_MR", req: GetDMAMRSize, res: MRResultSize},
	CmdRegUserMR:   {name: "REG_USER_MR", req: RegUserMRSize, res: MRResultSize},
	CmdDeregMR:     {name: "DEREG_MR", req: DeregMRSize},
	CmdCreateQP:    {name: "CREATE_QP", req: CreateQPSize, res: CreateQPResultSize},
	CmdModifyQP:    {name: "MODIFY_QP", req: ModifyQPSize},
	CmdQueryQP:     {name: "QUERY_QP", req: QueryQPSize, res: QueryQPResultSize},
	CmdDestroyQP:   {name: "DESTROY_QP", req: DestroyQPSize},
	CmdCreateAH:    {name: "CREATE_AH", req: CreateAHSize, res: CreateAHResultSize},
	CmdDestroyAH:   {name: "DESTROY_AH", req: DestroyAHSize},
	CmdAddGID:      {name: "ADD_GID", req: AddGIDSize},
	CmdDelGID:      {name: "DEL_GID", req: DelGIDSize},
	CmdReqNotifyCQ: {name: "REQ_NOTIFY_CQ", req: ReqNotifyCQSize},

	CmdExtEnable:   {name: "EXT_ENABLE", req: ExtEnableSize, res: ExtEnableSize},
	CmdCreateSRQ:   {name: "CREATE_SRQ", req: CreateSRQSize, res: CreateSRQResultSize, ext: CapSRQ},
	CmdModifySRQ:   {name: "MODIFY_SRQ", req: ModifySRQSize, ext: CapSRQ},
	CmdQuerySRQ:    {name: "QUERY_SRQ", req: QuerySRQSize, res: QuerySRQResultSize, ext: CapSRQ},
	CmdDestroySRQ:  {name: "DESTROY_SRQ", req: DestroySRQSize, ext: CapSRQ},
	CmdAllocMR:     {name: "ALLOC_MR", req: AllocMRSize, res: MRResultSize, ext: CapMemMgt},
	CmdAllocMW:     {name: "ALLOC_MW", req: AllocMWSize, res: AllocMWResultSize, ext: CapMW},
	CmdDeallocMW:   {name: "DEALLOC_MW", req: DeallocMWSize, ext: CapMW},
	CmdResizeCQ:    {name: "RESIZE_CQ", req: ResizeCQSize, ext: CapCQResize},
	CmdSetEVQ:      {name: "SET_EVQ", req: SetEVQSize, ext: CapAsyncEVQ},
	CmdSetArmArea:  {name: "SET_ARM_AREA", req: SetArmAreaSize, ext: CapArmDoorbell},
	CmdRegMRVA:     {name: "REG_MR_VA", req: RegMRVASize, res: MRResultSize, ext: CapVerbs},
	CmdReregMR:     {name: "REREG_MR", req: ReregMRSize, res: MRResultSize, ext: CapVerbs},
	CmdQueryPortEx: {name: "QUERY_PORT_EX", req: QueryPortExSize, res: QueryPortExResultSize, ext: CapPortAttr},
	CmdQueryGID:    {name: "QUERY_GID", req: QueryGIDSize, res: QueryGIDResultSize, ext: CapPortAttr},
	CmdModifyQPEx:  {name: "MODIFY_QP_EX", req: QPAttrExSize, ext: CapQPAttr},
	CmdQueryQPEx:   {name: "QUERY_QP_EX", req: QueryQPExSize, res: QPAttrExSize, ext: CapQPAttr},
	CmdAttachMcast: {name: "ATTACH_MCAST", req: AttachMcastSize, ext: CapMcast},
	CmdDetachMcast: {name: "DETACH_MCAST", req: AttachMcastSize, ext: CapMcast},
	CmdQueryPKey:   {name: "QUERY_PKEY", req: QueryPKeySize, res: QueryPKeyResultSize, ext: CapPortAttr},
}

// CmdInfo is the properties of a command that a dispatcher needs.
type CmdInfo struct {
	Name string
	// length of the request; REG_USER_MR is followed by its page list, others may be longer (the tail is
	// ignored)
	Req int
	Res int   // length of the result after the ack byte; CREATE_QP may give CreateQPResultExSize
	Ext uint8 // number of the capability bit that must be enabled; 0 = none
}

// Info returns the properties of c; ok is false if c is not assigned.
func (c Cmd) Info() (i CmdInfo, ok bool) {
	if int(c) >= len(cmdTable) || cmdTable[c].name == "" {
		return CmdInfo{}, false
	}
	t := &cmdTable[c]
	return CmdInfo{t.name, t.req, t.res, t.ext}, true
}

func (c Cmd) String() string {
	if i, ok := c.Info(); ok {
		return i.Name
	}
	return fmt.Sprintf("Cmd(%d)", uint8(c))
}

// ParseRegUserMRPages returns the page list after the request r in b, the whole command data. The length of b must
// match r.NPages, and be at most MaxRegPages.
func ParseRegUserMRPages(r RegUserMR, b []byte) ([]uint64, error) {
	want := RegUserMRSize + 8*uint64(r.NPages)
	if r.NPages > MaxRegPages || uint64(len(b)) != want {
		return nil, lengthError("REG_USER_MR page list", len(b), int(want))
	}
	pages := make([]uint64, r.NPages)
	for i := range pages {
		pages[i] = binary.LittleEndian.Uint64(b[RegUserMRSize+8*i:])
	}
	return pages, nil
}

// MaxRegPages bounds the page list of REG_USER_MR: 1 GiB in pages of 4 KiB.
const MaxRegPages = 262144

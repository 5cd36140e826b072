// SPDX-License-Identifier: Apache-2.0

package mad

import "fmt"

// Class is a management class.
type Class uint8

// Management classes (IBA volume 1, 13.4.4).
const (
	ClassSubnLID    Class = 0x01 // subnet management, LID-routed
	ClassSA         Class = 0x03
	ClassPerf       Class = 0x04
	ClassBM         Class = 0x05
	ClassDevMgmt    Class = 0x06
	ClassCM         Class = 0x07
	ClassSNMP       Class = 0x08
	ClassDevAdm     Class = 0x10
	ClassBIS        Class = 0x12
	ClassCongestion Class = 0x21
	ClassPing       Class = 0x32 // vendor class of ibping, by its OUI
	ClassSysStat    Class = 0x33 // vendor class of ibsysstat, by its OUI
	ClassSubnDR     Class = 0x81 // subnet management, directed route
)

// Versions of the header and of the classes that differ from 1.
const (
	BaseVersion    = 1
	ClassVersion   = 1
	ClassVersionSA = 2 // SA and CM
)

// IsSubn reports whether c is subnet management, which only queue pair 0 carries.
func (c Class) IsSubn() bool { return c == ClassSubnLID || c == ClassSubnDR }

// HasRMPP reports whether MADs of class c have an RMPP header: subnet
// administration, device administration, BIS and vendor range 2.
func (c Class) HasRMPP() bool {
	return c == ClassSA || c == ClassDevAdm || c == ClassBIS || c >= 0x30 && c <= 0x4f
}

// Method is a management method with its response bit.
type Method uint8

// MethodResponse is the bit that marks responses.
const MethodResponse Method = 0x80

// Methods; those from GetTable on are of subnet administration.
const (
	MethodGet           Method = 0x01
	MethodSet           Method = 0x02
	MethodSend          Method = 0x03
	MethodTrap          Method = 0x05
	MethodReport        Method = 0x06
	MethodTrapRepress   Method = 0x07
	MethodGetResp       Method = 0x81
	MethodReportResp    Method = 0x86
	MethodGetTable      Method = 0x12
	MethodGetTraceTable Method = 0x13
	MethodGetMulti      Method = 0x14
	MethodDelete        Method = 0x15
	MethodGetTableResp  Method = 0x92
	MethodGetMultiResp  Method = 0x94
	MethodDeleteResp    Method = 0x95
)

// IsResponse reports whether m answers another MAD: it has the response bit, or represses a trap.
func (m Method) IsResponse() bool { return m&MethodResponse != 0 || m == MethodTrapRepress }

// Response returns the method of the answer to m, or 0 if m has no answer.
func (m Method) Response() Method {
	switch m {
	case MethodGet, MethodSet:
		return MethodGetResp
	case MethodTrap:
		return MethodTrapRepress
	case MethodReport:
		return MethodReportResp
	case MethodGetTable, MethodGetTraceTable:
		return MethodGetTableResp
	case MethodGetMulti:
		return MethodGetMultiResp
	case MethodDelete:
		return MethodDeleteResp
	}
	return 0
}

var methodNames = map[Method]string{MethodGet: "Get", MethodSet: "Set", MethodSend: "Send", MethodTrap: "Trap",
	MethodReport:      "Report",
	MethodTrapRepress: "TrapRepress", MethodGetResp: "GetResp", MethodReportResp: "ReportResp", MethodGetTable: "GetTable",
	MethodGetTraceTable: "GetTraceTable", MethodGetMulti: "GetMulti", MethodDelete: "Delete", MethodGetTableResp: "GetTableResp",
	MethodGetMultiResp: "GetMultiResp", MethodDeleteResp: "DeleteResp"}

func (m Method) String() string {
	if n, ok := methodNames[m]; ok {
		return n
	}
	return fmt.Sprintf("Method(%#02x)", uint8(m))
}

// Status is the status of a response, of a directed-route SMP without the direction bit, which SMP separates.
type Status uint16

// Statuses common to all classes (IBA volume 1, 13.4.7).
const (
	StatusOK             Status = 0
	StatusBusy           Status = 0x0001
	StatusRedirect       Status = 0x0002
	StatusBadVersion     Status = 0x0004
	StatusBadMethod      Status = 0x0008 // method not supported
	StatusBadMethodAttr  Status = 0x000c // method and attribute not supported together
	StatusInvalidValue   Status = 0x001c // of attribute or modifier
	StatusClassSpecific  Status = 0xff00 // mask
	statusGeneralCode    Status = 0x001c // mask
	StatusSANoResources  Status = 0x0100
	StatusSARequest      Status = 0x0200 // request invalid
	StatusSANoRecords    Status = 0x0300
	StatusSATooMany      Status = 0x0400 // records
	StatusSAInvalidGID   Status = 0x0500
	StatusSAInsufficient Status = 0x0600 // components
	StatusSADenied       Status = 0x0700
	StatusSAPriority     Status = 0x0800 // suggested
)

// saStatusNames are the names of the statuses of subnet administration, by class-specific byte.
var saStatusNames = [...]string{"", "no resources", "request invalid", "no records", "too many records", "invalid GID",
	"insufficient components", "request denied", "priority suggested"}

// String returns the name of s. It reads the class-specific byte as that of subnet administration.
func (s Status) String() string {
	switch s {
	case StatusOK:
		return "success"
	case StatusBusy:
		return "busy"
	case StatusRedirect:
		return "redirect required"
	}
	switch s & statusGeneralCode {
	case StatusBadVersion:
		return "bad version"
	case StatusBadMethod:
		return "method not supported"
	case StatusBadMethodAttr:
		return "method/attribute combination not supported"
	case StatusInvalidValue:
		return "attribute or modifier value invalid"
	}
	if c := int(s >> 8); s&^StatusClassSpecific == 0 && c < len(saStatusNames) {
		return saStatusNames[c]
	}
	return fmt.Sprintf("Status(%#04x)", uint16(s))
}

// AttributeID names an attribute of a class.
type AttributeID uint16

// Attributes that several classes have.
const (
	AttrClassPortInfo AttributeID = 0x0001
	AttrNotice        AttributeID = 0x0002
	AttrInformInfo    AttributeID = 0x0003
)

// Attributes of subnet management.
const (
	AttrNodeDescription     AttributeID = 0x0010
	AttrNodeInfo            AttributeID = 0x0011
	AttrSwitchInfo          AttributeID = 0x0012
	AttrGUIDInfo            AttributeID = 0x0014
	AttrPortInfo            AttributeID = 0x0015
	AttrPKeyTable           AttributeID = 0x0016
	AttrSLtoVL              AttributeID = 0x0017
	AttrVLArb               AttributeID = 0x0018
	AttrLFT                 AttributeID = 0x0019
	AttrRFT                 AttributeID = 0x001a
	AttrMFT                 AttributeID = 0x001b
	AttrSMInfo              AttributeID = 0x0020
	AttrVendorDiag          AttributeID = 0x0030
	AttrLedInfo             AttributeID = 0x0031
	AttrMlxExtendedPortInfo AttributeID = 0xff90 // of one vendor's devices
)

// Attributes of performance management.
const (
	AttrPortSamplesControl   AttributeID = 0x0010
	AttrPortSamplesResult    AttributeID = 0x0011
	AttrPortCounters         AttributeID = 0x0012
	AttrPortRcvErrorDetails  AttributeID = 0x0015
	AttrPortXmitDiscards     AttributeID = 0x0016
	AttrPortCountersExtended AttributeID = 0x001d
	AttrPortXmitDataSL       AttributeID = 0x0036
	AttrPortRcvDataSL        AttributeID = 0x0037
)

// Attributes of subnet administration.
const (
	AttrNodeRecord               AttributeID = 0x0011
	AttrPortInfoRecord           AttributeID = 0x0012
	AttrSLtoVLRecord             AttributeID = 0x0013
	AttrSwitchInfoRecord         AttributeID = 0x0014
	AttrLFTRecord                AttributeID = 0x0015
	AttrMFTRecord                AttributeID = 0x0017
	AttrSMInfoRecord             AttributeID = 0x0018
	AttrLinkRecord               AttributeID = 0x0020
	AttrGUIDInfoRecord           AttributeID = 0x0030
	AttrServiceRecord            AttributeID = 0x0031
	AttrPKeyTableRecord          AttributeID = 0x0033
	AttrPathRecord               AttributeID = 0x0035
	AttrVLArbRecord              AttributeID = 0x0036
	AttrMCMemberRecord           AttributeID = 0x0038
	AttrTraceRecord              AttributeID = 0x0039
	AttrMultiPathRecord          AttributeID = 0x003a
	AttrServiceAssociationRecord AttributeID = 0x003b
	AttrInformInfoRecord         AttributeID = 0x00f3
)

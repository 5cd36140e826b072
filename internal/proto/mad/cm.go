// SPDX-License-Identifier: Apache-2.0

package mad

// Attributes of communication management (IBA volume 1, 12.6). Their method is MethodSend; AttrClassPortInfo has the
// usual methods.
const (
	AttrCMREQ     AttributeID = 0x0010
	AttrCMMRA     AttributeID = 0x0011
	AttrCMREJ     AttributeID = 0x0012
	AttrCMREP     AttributeID = 0x0013
	AttrCMRTU     AttributeID = 0x0014
	AttrCMDREQ    AttributeID = 0x0015
	AttrCMDREP    AttributeID = 0x0016
	AttrCMSIDRReq AttributeID = 0x0017
	AttrCMSIDRRep AttributeID = 0x0018
	AttrCMLAP     AttributeID = 0x0019
	AttrCMAPR     AttributeID = 0x001a
)

// ClassVersionCM is the version of the communication management class.
const ClassVersionCM = 2

// CMDataLen is the length of a message after the header.
const CMDataLen = Len - HeaderLen

// NewCM returns the MAD of a message with its data still zero.
func NewCM(a AttributeID, tid uint64) CM {
	return CM{Header: Header{BaseVersion: BaseVersion, MgmtClass: ClassCM, ClassVersion: ClassVersionCM,
		Method:        MethodSend,
		TransactionID: tid, AttributeID: a}}
}

// Kinds of messages in the Message of an MRA or a REJ. CMOther in a REJ is any other message, or none.
const (
	CMOfREQ uint8 = iota
	CMOfREP
	CMOther // of an MRA: a LAP
)

// Transport service types of a REQ.
const (
	CMTransportRC uint8 = iota
	CMTransportUC
	CMTransportRD
	CMTransportExt // see ExtTransport
)

// Values of CMREP.Failover: the answer of a REP to the alternate path.
const (
	CMFailoverAccepted uint8 = iota
	CMFailoverUnsupported
	CMFailoverRejected
)

// CMAPUnsupported is the status of the CMAPR of a node without alternate paths.
const CMAPUnsupported = 2

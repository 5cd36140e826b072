// SPDX-License-Identifier: Apache-2.0

package main

// connections are the messages of communication management, from the octet after the header of the MAD on.
var connections = []layout{
	{name: "CMIDs", part: true, source: "IBA volume 1, 12.6",
		doc: `CMIDs begin every message but those of SIDR: the communication identifiers of the sender, and of the receiver
as the receiver stated it.`, fields: `
		 0  32  LocalCommID   uint32
		32  32  RemoteCommID  uint32`},
	{name: "CMPath", part: true, source: "IBA volume 1, 12.6.5",
		doc: "CMPath is a path in a REQ, as the sender sees it.", fields: `
		  0  16  LocalLID     ib.LID
		 16  16  RemoteLID    ib.LID
		 32 128  LocalGID     ib.GID
		160 128  RemoteGID    ib.GID
		288  20  FlowLabel    uint32
		308   6  reserved
		314   6  Rate         ib.Rate
		320   8  TClass       uint8
		328   8  HopLimit     uint8
		336   4  SL           uint8
		340   1  SubnetLocal  bool
		341   3  reserved
		344   5  AckTimeout   uint8
		349   3  reserved`},
	{name: "CMREQ", length: "CMDataLen", source: "IBA volume 1, 12.6.5", doc: "CMREQ requests a connection.",
		fields: `
		   0  32  LocalCommID            uint32
		  32   8  reserved
		  40  24  VendorID               uint32
		  64  64  ServiceID              uint64
		 128  64  CAGUID                 ib.GUID
		 192  32  reserved
		 224  32  QKey                   uint32
		 256  24  QPN                    uint32
		 280   8  ResponderResources     uint8
		 288  24  LocalEECN              uint32
		 312   8  InitiatorDepth         uint8
		 320  24  RemoteEECN             uint32
		 344   5  RemoteResponseTimeout  uint8
		 349   2  Transport              uint8
		 351   1  FlowControl            bool
		 352  24  StartingPSN            uint32
		 376   5  LocalResponseTimeout   uint8
		 381   3  RetryCount             uint8
		 384  16  PKey                   uint16
		 400   4  PathMTU                ib.MTU
		 404   1  RDCExists              bool
		 405   3  RNRRetry               uint8
		 408   4  MaxCMRetries           uint8
		 412   1  SRQ                    bool
		 413   3  ExtTransport           uint8
		 416 352  Primary                CMPath
		 768 352  Alternate              CMPath    // all zero: none
		1120 736  PrivateData            [92]byte`},
	{name: "CMMRA", length: "CMDataLen", source: "IBA volume 1, 12.6.6", doc: "CMMRA requests more time.", fields: `
		 0   64  CMIDs           embedded
		64    2  Message         uint8      // CMOfREQ, CMOfREP; CMOther: a LAP
		66    6  reserved
		72    5  ServiceTimeout  uint8      // 4.096 µs × 2^v
		77    3  reserved
		80 1776  PrivateData     [222]byte`},
	{name: "CMREJ", length: "CMDataLen", source: "IBA volume 1, 12.6.7",
		doc: "CMREJ refuses a message, or a connection.", fields: `
		  0   64  CMIDs        embedded
		 64    2  Message      uint8      // CMOfREQ, CMOfREP, CMOther
		 66    6  reserved
		 72    7  InfoLen      uint8
		 79    1  reserved
		 80   16  Reason       uint16
		 96  576  Info         [72]byte
		672 1184  PrivateData  [148]byte`},
	{name: "CMREP", length: "CMDataLen", source: "IBA volume 1, 12.6.8", doc: "CMREP accepts a CMREQ.", fields: `
		  0   64  CMIDs               embedded
		 64   32  QKey                uint32
		 96   24  QPN                 uint32
		120    8  VendorID[23:16]     uint32
		128   24  LocalEECN           uint32
		152    8  VendorID[15:8]      uint32
		160   24  StartingPSN         uint32
		184    8  VendorID[7:0]       uint32
		192    8  ResponderResources  uint8
		200    8  InitiatorDepth      uint8
		208    5  AckDelay            uint8
		213    2  Failover            uint8
		215    1  FlowControl         bool
		216    3  RNRRetry            uint8
		219    1  SRQ                 bool
		220    4  reserved
		224   64  CAGUID              ib.GUID
		288 1568  PrivateData         [196]byte`},
	{name: "CMRTU", length: "CMDataLen", source: "IBA volume 1, 12.6.9",
		doc: "CMRTU states that the connection is ready for use.", fields: `
		 0   64  CMIDs        embedded
		64 1792  PrivateData  [224]byte`},
	{name: "CMDREQ", length: "CMDataLen", source: "IBA volume 1, 12.6.10", doc: "CMDREQ ends a connection.", fields: `
		 0   64  CMIDs        embedded
		64   24  RemoteQPN    uint32     // of the receiver
		88    8  reserved
		96 1760  PrivateData  [220]byte`},
	{name: "CMDREP", length: "CMDataLen", source: "IBA volume 1, 12.6.11",
		doc: "CMDREP confirms the end of a connection.", fields: `
		 0   64  CMIDs        embedded
		64 1792  PrivateData  [224]byte`},
	{name: "CMLAP", length: "CMDataLen", source: "IBA volume 1, 12.8.1",
		doc: "CMLAP proposes another alternate path.", fields: `
		  0   64  CMIDs                  embedded
		 64   32  reserved
		 96   24  RemoteQPN              uint32     // of the receiver
		120    5  RemoteResponseTimeout  uint8
		125    3  reserved
		128   32  reserved
		160    0  Alternate              CMPath
		160   16  Alternate.LocalLID     ib.LID
		176   16  Alternate.RemoteLID    ib.LID
		192  128  Alternate.LocalGID     ib.GID
		320  128  Alternate.RemoteGID    ib.GID
		448   20  Alternate.FlowLabel    uint32
		468    4  reserved
		472    8  Alternate.TClass       uint8
		480    8  Alternate.HopLimit     uint8
		488    2  reserved
		490    6  Alternate.Rate         ib.Rate
		496    4  Alternate.SL           uint8
		500    1  Alternate.SubnetLocal  bool
		501    3  reserved
		504    5  Alternate.AckTimeout   uint8
		509    3  reserved
		512 1344  PrivateData            [168]byte`},
	{name: "CMAPR", length: "CMDataLen", source: "IBA volume 1, 12.8.2", doc: "CMAPR answers a CMLAP.", fields: `
		  0   64  CMIDs        embedded
		 64    8  InfoLen      uint8
		 72    8  Status       uint8
		 80   16  reserved
		 96  576  Info         [72]byte
		672 1184  PrivateData  [148]byte`},
	{name: "CMSIDRReq", length: "CMDataLen", source: "IBA volume 1, 12.11.1",
		doc: "CMSIDRReq requests the queue pair of a service.", fields: `
		  0   32  RequestID    uint32
		 32   16  PKey         uint16
		 48   16  reserved
		 64   64  ServiceID    uint64
		128 1728  PrivateData  [216]byte`},
	{name: "CMSIDRRep", length: "CMDataLen", source: "IBA volume 1, 12.11.2",
		doc: "CMSIDRRep answers a CMSIDRReq.", fields: `
		  0   32  RequestID       uint32
		 32    8  Status          uint8
		 40    8  InfoLen         uint8
		 48   16  VendorID[23:8]  uint32
		 64   24  QPN             uint32
		 88    8  VendorID[7:0]   uint32
		 96   64  ServiceID       uint64
		160   32  QKey            uint32
		192  576  Info            [72]byte
		768 1088  PrivateData     [136]byte`},
}

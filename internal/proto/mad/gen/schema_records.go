// SPDX-License-Identifier: Apache-2.0

package main

// records are the records of subnet administration that hold an attribute of subnet management, a service or
// a subscription. The lines of a record, with those of the attribute in it, are its components in the order of
// the component mask (IBA volume 1, 15.2.5), the reserved ones included.
var records = []layout{
	{name: "NodeRecord", attr: "AttrNodeRecord", components: "Node", source: "IBA volume 1, 15.2.5",
		doc: "NodeRecord is a node as one of its ports presents it.", fields: `
		  0  16  LID              ib.LID
		 16  16  reserved
		 32 320  NodeInfo         NodeInfo
		352 512  NodeDescription  NodeDescription`},
	{name: "PortInfoRecord", attr: "AttrPortInfoRecord", components: "Port", renamed: "EndPortLID=LID LID=BaseLID",
		source: "IBA volume 1, 15.2.5", doc: "PortInfoRecord is the state of a port.", fields: `
		 0  16  EndPortLID  ib.LID
		16   8  PortNum     uint8
		24   8  Options     uint8
		32 512  PortInfo    PortInfo`},
	{name: "SLtoVLRecord", attr: "AttrSLtoVLRecord", components: "SLtoVL", renamed: "LID=- SLtoVL=-",
		source: "IBA volume 1, 15.2.5",
		doc:    "SLtoVLRecord is the mapping from one port to another of a switch, or that of a port of a channel adapter.",
		fields: `
		 0  16  LID      ib.LID
		16   8  InPort   uint8
		24   8  OutPort  uint8
		32  32  reserved
		64  64  SLtoVL   SLtoVL`},
	{name: "SwitchInfoRecord", attr: "AttrSwitchInfoRecord", components: "Switch", renamed: "LID=-",
		source: "IBA volume 1, 15.2.5", doc: "SwitchInfoRecord is the capabilities of a switch and its state.", fields: `
		 0  16  LID         ib.LID
		16  16  reserved
		32 160  SwitchInfo  SwitchInfo`},
	{name: "LFTRecord", attr: "AttrLFTRecord", components: "LFT", renamed: "LID=- LFT=-", length: "TableRecordLen",
		source: "IBA volume 1, 15.2.5", doc: "LFTRecord is a block of the linear forwarding table of a switch.",
		fields: `
		 0  16  LID    ib.LID
		16  16  Block  uint16
		32  32  reserved
		64 512  LFT    LFT`},
	{name: "MFTRecord", attr: "AttrMFTRecord", components: "MFT", renamed: "LID=- MFT=-", length: "TableRecordLen",
		source: "IBA volume 1, 15.2.5", doc: "MFTRecord is a block of the multicast forwarding table of a switch.",
		fields: `
		 0  16  LID       ib.LID
		16   4  Position  uint8
		20   3  reserved
		23   9  Block     uint16
		32  32  reserved
		64 512  MFT       MFT`},
	{name: "GUIDInfoRecord", attr: "AttrGUIDInfoRecord", components: "GUIDInfo", renamed: "LID=- GUIDInfo=GUID0",
		length: "TableRecordLen", source: "IBA volume 1, 15.2.5",
		doc: "GUIDInfoRecord is a block of the GUID table of a port.", fields: `
		 0  16  LID       ib.LID
		16   8  Block     uint8
		24   8  reserved
		32  32  reserved
		64 512  GUIDInfo  GUIDInfo`},
	{name: "PKeyTableRecord", attr: "AttrPKeyTableRecord", components: "PKey", renamed: "LID=- PKeyTable=-",
		length: "TableRecordLen", source: "IBA volume 1, 15.2.5",
		doc: "PKeyTableRecord is a block of the P_Key table of a port.", fields: `
		 0  16  LID        ib.LID
		16  16  Block      uint16
		32   8  Port       uint8
		40  24  reserved
		64 512  PKeyTable  PKeyTable`},
	{name: "VLArbRecord", attr: "AttrVLArbRecord", components: "VLArb", renamed: "LID=- VLArb=-",
		length: "TableRecordLen",
		source: "IBA volume 1, 15.2.5", doc: "VLArbRecord is a block of the VL arbitration table of a port.", fields: `
		 0  16  LID    ib.LID
		16   8  Port   uint8
		24   8  Block  uint8
		32  32  reserved
		64 512  VLArb  VLArb`},
	{name: "SMInfoRecord", attr: "AttrSMInfoRecord", components: "SM", source: "IBA volume 1, 15.2.5",
		doc: "SMInfoRecord is a subnet manager.", fields: `
		 0  16  LID     ib.LID
		16  16  reserved
		32 168  SMInfo  SMInfo`},
	{name: "LinkRecord", attr: "AttrLinkRecord", components: "Link", source: "IBA volume 1, 15.2.5",
		doc: "LinkRecord is a link between two ports, in one direction.", fields: `
		 0  16  FromLID   ib.LID
		16   8  FromPort  uint8
		24   8  ToPort    uint8
		32  16  ToLID     ib.LID`},
	{name: "ServiceRecord", attr: "AttrServiceRecord", components: "Service", source: "IBA volume 1, 15.2.5",
		doc: "ServiceRecord is a service that a port offers.", fields: `
		   0  64  ServiceID   uint64
		  64 128  ServiceGID  ib.GID
		 192  16  PKey        ib.PKey
		 208  16  reserved
		 224  32  Lease       uint32           // seconds
		 256 128  Key         [16]byte
		 384 512  Name        [64]byte         // UTF-8, padded with zeros
		 896 128  Data8       [16]uint8  each
		1024 128  Data16      [8]uint16  each
		1152 128  Data32      [4]uint32  each
		1280 128  Data64      [2]uint64  each`},
	{name: "InformInfo", attr: "AttrInformInfo", source: "IBA volume 1, 13.4.8.3",
		doc: "InformInfo subscribes to notices, or ends a subscription.", fields: `
		  0 128  GID         ib.GID      // of the issuer of the notices; if it is zero the LIDs count
		128  16  LIDBegin    ib.LID      // InformAllLIDs is all
		144  16  LIDEnd      ib.LID
		160  16  reserved
		176   8  IsGeneric   uint8       // as received: the receiver refuses any value but 0 and 1
		184   8  Subscribe   uint8       // likewise
		192  16  Type        NoticeType
		208  16  TrapNumber  TrapNumber  // of a notice of a vendor the device ID
		224  24  QPN         ib.QPN      // of the subscriber, when a subscription ends
		248   3  reserved
		251   5  RespTime    uint8
		256   8  reserved
		264  24  Producer    Producer    // of a notice of a vendor the vendor ID`},
	{name: "InformInfoRecord", attr: "AttrInformInfoRecord", components: "Inform", source: "IBA volume 1, 15.2.5",
		doc: "InformInfoRecord is a subscription in the subnet administration.", fields: `
		  0 128  SubscriberGID  ib.GID
		128  16  Enum           uint16
		144  48  reserved
		192 288  InformInfo     InformInfo`},
}

// paths are the records of paths and of multicast groups.
var paths = []layout{
	{name: "PathRecord", attr: "AttrPathRecord", components: "Path", source: "IBA volume 1, 15.2.5.16",
		doc: "PathRecord is a path between two ports, or a query for paths.", fields: `
		  0   8  ServiceID[63:56]  uint64
		  8  56  ServiceID[55:0]   uint64
		 64 128  DGID              ib.GID
		192 128  SGID              ib.GID
		320  16  DLID              ib.LID
		336  16  SLID              ib.LID
		352   1  RawTraffic        bool
		353   3  reserved
		356  20  FlowLabel         uint32
		376   8  HopLimit          uint8
		384   8  TClass            uint8
		392   1  Reversible        bool
		393   7  NumbPath          uint8
		400  16  PKey              ib.PKey
		416  12  QoSClass          uint16
		428   4  SL                uint8
		432   2  MTUSelector       Selector
		434   6  MTU               ib.MTU
		440   2  RateSelector      Selector
		442   6  Rate              ib.Rate
		448   2  LifeSelector      Selector
		450   6  Life              uint8     // packet life time 4.096 µs × 2^v
		456   8  Preference        uint8
		464  48  reserved`},
	{name: "MultiPathRecord", attr: "AttrMultiPathRecord", components: "Multi",
		renamed: "ServiceID[63:56]=ServiceIDHigh ServiceID[55:0]=ServiceIDLow", source: "IBA volume 1, 15.2.5",
		doc: `MultiPathRecord is a query for paths between two sets of ports. SGIDCount sources and then DGIDCount
destinations follow it, which GID reads.`, fields: `
		  0   1  RawTraffic        bool
		  1   3  reserved
		  4  20  FlowLabel         uint32
		 24   8  HopLimit          uint8
		 32   8  TClass            uint8
		 40   1  Reversible        bool
		 41   7  NumbPath          uint8
		 48  16  PKey              ib.PKey
		 64  12  QoSClass          uint16
		 76   4  SL                uint8
		 80   2  MTUSelector       Selector
		 82   6  MTU               ib.MTU
		 88   2  RateSelector      Selector
		 90   6  Rate              ib.Rate
		 96   2  LifeSelector      Selector
		 98   6  Life              uint8
		104   8  ServiceID[63:56]  uint64
		112   2  Independence      uint8
		114   6  reserved
		120   8  SGIDCount         uint8
		128   8  DGIDCount         uint8
		136  56  ServiceID[55:0]   uint64`},
	{name: "MCMemberRecord", attr: "AttrMCMemberRecord", components: "MC", source: "IBA volume 1, 15.2.5.17",
		doc: "MCMemberRecord is a multicast group with one of its members, or a request to join or leave it.", fields: `
		  0 128  MGID          ib.GID
		128 128  PortGID       ib.GID
		256  32  QKey          ib.QKey
		288  16  MLID          ib.LID
		304   2  MTUSelector   Selector
		306   6  MTU           ib.MTU
		312   8  TClass        uint8
		320  16  PKey          ib.PKey
		336   2  RateSelector  Selector
		338   6  Rate          ib.Rate
		344   2  LifeSelector  Selector
		346   6  Life          uint8     // packet life time 4.096 µs × 2^v
		352   4  SL            uint8
		356  20  FlowLabel     uint32
		376   8  HopLimit      uint8
		384   4  Scope         uint8
		388   4  JoinState     uint8
		392   1  ProxyJoin     bool
		393  23  reserved`},
}

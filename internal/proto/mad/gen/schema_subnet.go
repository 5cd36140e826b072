// SPDX-License-Identifier: Apache-2.0

package main

// subnet are the attributes of subnet management that are not tables.
var subnet = []layout{
	{name: "NodeDescription", source: "IBA volume 1, 14.2.5.2",
		doc: "NodeDescription is UTF-8 text, padded with zeros.", fields: `
		0 512  *  [NodeDescriptionLen]byte`},
	{name: "NodeInfo", source: "IBA volume 1, 14.2.5.3", doc: "NodeInfo describes a node.", fields: `
		  0   8  BaseVersion      uint8
		  8   8  ClassVersion     uint8
		 16   8  NodeType         NodeType
		 24   8  NumPorts         uint8
		 32  64  SystemImageGUID  ib.GUID
		 96  64  NodeGUID         ib.GUID
		160  64  PortGUID         ib.GUID  // of the port that the SMP arrived on; of a switch that of port 0
		224  16  PartitionCap     uint16   // entries of the P_Key table; of a switch that of port 0
		240  16  DeviceID         uint16
		256  32  Revision         uint32
		288   8  LocalPortNum     uint8    // the port that the SMP arrived on
		296  24  VendorID         uint32`},
	{name: "SwitchInfo", source: "IBA volume 1, 14.2.5.4",
		doc: "SwitchInfo is the capabilities of a switch and its state.", fields: `
		  0  16  LinearFDBCap                    uint16
		 16  16  RandomFDBCap                    uint16
		 32  16  MulticastFDBCap                 uint16
		 48  16  LinearFDBTop                    ib.LID  // unicast LIDs above it are dropped
		 64   8  DefaultPort                     uint8
		 72   8  DefaultMulticastPrimaryPort     uint8
		 80   8  DefaultMulticastNotPrimaryPort  uint8
		 88   5  LifeTimeValue                   uint8
		 93   1  PortStateChange                 bool    // set by the switch; a Set with true clears it
		 94   2  OptimizedSLtoVLMapping          uint8
		 96  16  LIDsPerPort                     uint16
		112  16  PartitionEnforcementCap         uint16
		128   1  InboundEnforcementCap           bool
		129   1  OutboundEnforcementCap          bool
		130   1  FilterRawInboundCap             bool
		131   1  FilterRawOutboundCap            bool
		132   1  EnhancedPort0                   bool
		133   3  reserved
		136   8  reserved
		144  16  MulticastFDBTop                 ib.LID`},
	{name: "PortInfo", source: "IBA volume 1, 14.2.5.6",
		doc: `PortInfo is the state of a port. Of an external port of a switch the fields that belong to the node (M_Key,
prefix, LIDs, capabilities, timeouts) are zero: port 0 has them.`, fields: `
		  0  64  MKey                   uint64
		 64  64  GIDPrefix              uint64
		128  16  LID                    ib.LID
		144  16  MasterSMLID            ib.LID
		160  32  CapabilityMask         Capability
		192  16  DiagCode               uint16
		208  16  MKeyLeasePeriod        uint16           // seconds; 0 is for ever
		224   8  LocalPortNum           uint8            // the port that the SMP arrived on
		232   8  LinkWidthEnabled       ib.LinkWidth
		240   8  LinkWidthSupported     ib.LinkWidth
		248   8  LinkWidthActive        ib.LinkWidth
		256   4  LinkSpeedSupported     ib.LinkSpeed
		260   4  PortState              ib.PortState
		264   4  PortPhysicalState      ib.PhysState
		268   4  LinkDownDefaultState   ib.PhysState     // sleep or polling
		272   2  MKeyProtectBits        uint8
		274   3  reserved
		277   3  LMC                    uint8
		280   4  LinkSpeedActive        ib.LinkSpeed
		284   4  LinkSpeedEnabled       ib.LinkSpeed
		288   4  NeighborMTU            ib.MTU
		292   4  MasterSMSL             uint8
		296   4  VLCap                  VLCap
		300   4  InitType               uint8
		304   8  VLHighLimit            uint8
		312   8  VLArbHighCap           uint8
		320   8  VLArbLowCap            uint8
		328   4  InitTypeReply          uint8
		332   4  MTUCap                 ib.MTU
		336   3  VLStallCount           uint8
		339   5  HOQLife                uint8
		344   4  OperationalVLs         VLCap
		348   1  PartitionEnforceIn     bool
		349   1  PartitionEnforceOut    bool
		350   1  FilterRawIn            bool
		351   1  FilterRawOut           bool
		352  16  MKeyViolations         uint16
		368  16  PKeyViolations         uint16
		384  16  QKeyViolations         uint16
		400   8  GUIDCap                uint8
		408   1  ClientReregister       bool
		409   2  McastPKeyTrapSuppress  uint8
		411   5  SubnetTimeOut          uint8            // 4.096 µs × 2^v
		416   3  reserved
		419   5  RespTimeValue          uint8
		424   4  LocalPhyErrors         uint8            // threshold
		428   4  OverrunErrors          uint8            // threshold
		432  16  MaxCreditHint          uint16
		448   8  reserved
		456  24  LinkRoundTripLatency   uint32
		480  16  CapabilityMask2        Capability2
		496   4  LinkSpeedExtActive     ib.LinkSpeedExt
		500   4  LinkSpeedExtSupported  ib.LinkSpeedExt
		504   3  reserved
		507   5  LinkSpeedExtEnabled    ib.LinkSpeedExt`},
	{name: "SMInfo", source: "IBA volume 1, 14.2.5.13", doc: "SMInfo describes a subnet manager to others.", fields: `
		  0  64  GUID      ib.GUID
		 64  64  SMKey     uint64
		128  32  ActCount  uint32
		160   4  Priority  uint8
		164   4  State     SMState`},
}

// tables are the attributes of subnet management that are a block of a table.
var tables = []layout{
	{name: "GUIDInfo", length: "TableLen", source: "IBA volume 1, 14.2.5.5",
		doc: "GUIDInfo is a block of the GUID table of a port. Entry 0 of block 0 is the port GUID, read-only.",
		fields: `
		0 512  *  [GUIDsPerBlock]ib.GUID each`},
	{name: "PKeyTable", length: "TableLen", source: "IBA volume 1, 14.2.5.7",
		doc: "PKeyTable is a block of the P_Key table of a port; 0 is an empty entry.", fields: `
		0 512  *  [PKeysPerBlock]ib.PKey`},
	{name: "SLtoVL", source: "IBA volume 1, 14.2.5.8",
		doc: "SLtoVL is the virtual lane of each service level; lane 15 drops the packet.", fields: `
		0 64  *  [16]uint8`},
	{name: "VLArbEntry", part: true, source: "IBA volume 1, 14.2.5.9",
		doc: "VLArbEntry gives a virtual lane a weight in units of 64 bytes; the weight 0 skips the lane.", fields: `
		0   4  reserved
		4   4  VL      uint8
		8   8  Weight  uint8`},
	{name: "VLArb", length: "TableLen", source: "IBA volume 1, 14.2.5.9",
		doc: "VLArb is a block of a VL arbitration table.", fields: `
		0 512  *  [VLArbPerBlock]VLArbEntry`},
	{name: "LFT", length: "TableLen", source: "IBA volume 1, 14.2.5.10",
		doc: `LFT is a block of a linear forwarding table: the port of each of the LFTPerBlock LIDs from
block × LFTPerBlock on.`, fields: `
		0 512  *  [LFTPerBlock]uint8`},
	{name: "MFT", length: "TableLen", source: "IBA volume 1, 14.2.5.12",
		doc: `MFT is a block of a multicast forwarding table: for each of the MFTPerBlock groups the ports
16 × position + bit.`, fields: `
		0 512  *  [MFTPerBlock]uint16`},
}

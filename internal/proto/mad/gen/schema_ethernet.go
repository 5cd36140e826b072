// SPDX-License-Identifier: Apache-2.0

package main

// ethernet are the attributes of the class by which an Ethernet Manager configures virtual Ethernet ports.
var ethernet = []layout{
	{name: "VEMANotice", source: "docs/notes/vesw.md", doc: "VEMANotice reports an event of a vport.", fields: `
		  0   8  GenericType  uint8       // VEMAGenericType; see Informational
		  8  24  OUI          uint32
		 32  16  TrapNumber   TrapNumber
		 48  16  ToggleCount  uint16
		 64  32  IssuerLID    uint32      // EncapSLID
		 96  32  reserved
		128 128  IssuerGID    ib.GID
		256  16  FabricID     uint16
		272  16  VESWID       uint16
		288  32  PortNum      uint32      // within the VESW
		320  16  OPAPort      uint16      // number of the port, from 1
		336   8  VPort        uint8
		344   8  Opcode       VEMAOpcode
		352 416  reserved`},
	{name: "VEMATrap", source: "docs/notes/vesw.md",
		doc: "VEMATrap is a trap of the class: a MAD that is shorter than others and has a notice as its attribute.",
		fields: `
		   0  192  Header  embedded
		 192   96  RMPP    RMPP
		 288    8  reserved
		 296   24  OUI     uint32
		 320  768  Notice  VEMANotice
		1088 1088  reserved`},
	{name: "VEMAClassPortInfo", source: "docs/notes/vesw.md",
		doc: `VEMAClassPortInfo describes how a port serves the class. Its last fields lie elsewhere than in a ClassPortInfo.
Trap.LID is 0 where traps go nowhere; of Trap only LID and SL matter to the agent of the driver and to that of
Weft, which keep the rest.`, fields: `
		  0   8  BaseVersion         uint8
		  8   8  ClassVersion        uint8
		 16  16  CapabilityMask      uint16      // ClassCapTrap, and in the upper half the largest number of vports
		 32  27  CapabilityMask2     uint32
		 59   5  RespTimeValue       uint8
		 64   0  Redirect            VEMATarget
		 64 128  Redirect.GID        ib.GID
		192   8  Redirect.TClass     uint8
		200   4  reserved
		204  20  Redirect.FlowLabel  uint32
		224  32  Redirect.LID        uint32
		256   5  Redirect.SL         uint8
		261   3  reserved
		264  24  Redirect.QPN        ib.QPN
		288  32  Redirect.QKey       ib.QKey
		320   0  Trap                VEMATarget
		320 128  Trap.GID            ib.GID
		448   8  Trap.TClass         uint8
		456   4  reserved
		460  20  Trap.FlowLabel      uint32
		480  32  Trap.LID            uint32
		512   8  Trap.HopLimit       uint8
		520  24  Trap.QPN            ib.QPN
		544  32  Trap.QKey           ib.QKey
		576  16  Trap.PKey           ib.PKey
		592  16  Redirect.PKey       ib.PKey
		608   5  Trap.SL             uint8
		613   3  reserved
		616  24  reserved`},
	{name: "VESW", part: true, source: "docs/notes/vesw.md",
		doc: `VESW is the part of a VESWPortInfo that is the same for all ports of a virtual Ethernet switch. LIDs are as a
16B packet has them, in 24 bits. Agents keep and return reserved octets.`, fields: `
		   0  16  FabricID         uint16      // of which 10 bits count
		  16  16  VESWID           uint16      // of which 12 bits count; 0: none
		  32  48  Reserved4        [6]byte
		  80  16  DefaultPortMask  uint16      // bit n: UcastDLIDs[n] is a default port
		  96  16  Reserved12       [2]byte
		 112  16  PKey             ib.PKey
		 128  32  Reserved16       [4]byte
		 160  32  McastDLID        uint32
		 192 512  UcastDLIDs       [VESWGateways]uint32
		 704  32  RC               uint32      // routing control: seven slots of 4 bits
		 736 448  Reserved92       [56]byte
		1184  16  EthMTU           uint16      // of what follows the Ethernet header
		1200  16  Reserved150      [2]byte`},
	{name: "VESWPort", part: true, source: "docs/notes/vesw.md",
		doc: `VESWPort is the part of a VESWPortInfo that is of one port. The manager writes all of it but the fields marked
RO, which a Set ignores.`, fields: `
		  0  32  PortNum         uint32          // within the VESW
		 32   8  LinkStatus      VESWLinkStatus  // RO
		 40  24  Reserved5       [3]byte
		 64  48  BaseMAC         [6]byte
		112   8  ConfigState     VESWState
		120   8  OperState       VESWState       // RO
		128  16  MaxMACEntries   uint16          // RO
		144  16  MaxSMACEntries  uint16          // RO
		160  32  MACDigest       uint32          // RO: a Set of VESWMACEntries writes it
		192  32  Reserved24      [4]byte
		224  32  EncapSLID       uint32
		256  64  PCPToSCUc       [8]uint8
		320  64  PCPToVLUc       [8]uint8
		384  64  PCPToSCMc       [8]uint8
		448  64  PCPToVLMc       [8]uint8
		512   8  NonVLANSCUc     uint8
		520   8  NonVLANVLUc     uint8
		528   8  NonVLANSCMc     uint8
		536   8  NonVLANVLMc     uint8
		544 384  Reserved68      [48]byte
		928  16  UcMACsGen       uint16          // RO: generation of the list of unicast MACs
		944  16  McMACsGen       uint16          // RO
		960  64  Reserved120     [8]byte`},
	{name: "VESWPortInfo", source: "docs/notes/vesw.md",
		doc: "VESWPortInfo is the configuration and state of a vport.", fields: `
		   0 1216  VESW  VESW
		1216 1024  Port  VESWPort`},
	{name: "VESWMACEntry", part: true, source: "docs/notes/vesw.md",
		doc: `VESWMACEntry is a slot of the table of MACs of a port. A slot with a zero MAC is empty, and a Set of it
empties the slot.`, fields: `
		 0  48  MAC     [6]byte
		48  48  Mask    [6]byte  // kept and returned; it has no meaning
		96  32  DLIDSD  uint32   // DLID and side data; see MakeDLIDSD`},
	{name: "VESWMACEntries", source: "docs/notes/vesw.md",
		doc: "VESWMACEntries is a range of the slots of the table of MACs of a port: the first Num of Entries.",
		fields: `
		 0    16  Offset   uint16             // first slot
		16    16  Num      uint16             // at most VESWMACsPerMAD; see Valid
		32    32  Digest   uint32             // mark that the manager gives the whole table
		64 16000  Entries  [VESWMACsPerMAD]VESWMACEntry`},
	{name: "VESWMACList", source: "docs/notes/vesw.md",
		doc: `VESWMACList is a part of a list of the MACs that an interface accepts: unicast ones without the base MAC, or
multicast ones. A request has Start, and in Num the largest number of MACs in the answer, or 0. Parse does not
validate Num.`, fields: `
		 0    16  Start  uint16        // index in the list of the first
		16    16  Num    uint16        // of MACs
		32    16  Total  uint16        // in the list
		48    16  Gen    uint16        // generation of the list: parts of different generations are of different lists
		64 15984  MACs   [VESWListPerMAD][6]byte`},
	{name: "VESWSummary", source: "docs/notes/vesw.md",
		doc: `VESWSummary is the counters of a vport. Nothing clears them. PortNum is the number within the VESW; the agent of
the driver has the number of the port of the fabric there.`, fields: `
		   0   16  VPort    uint16
		  16   16  VESWID   uint16
		  32   32  PortNum  uint32
		  64 1792  Values   [NumVESWCounters]uint64  // by VESWCounter
		1856 1024  reserved`},
	{name: "VESWErrors", source: "docs/notes/vesw.md",
		doc: "VESWErrors counts the dropped frames of a vport by cause.", fields: `
		   0   16  VPort        uint16
		  16   16  VESWID       uint16
		  32   32  PortNum      uint32  // as in VESWSummary
		  64   64  TxErrors     uint64  // sum of the causes of this direction
		 128   64  RxErrors     uint64  // likewise
		 192   64  reserved
		 256   64  TxSMACFilt   uint64  // always 0
		 320  192  reserved
		 512   64  TxDLIDZero   uint64  // no destination
		 576   64  reserved
		 640   64  TxLogic      uint64  // no memory, or a frame that must not be sent
		 704   64  reserved
		 768   64  TxDropState  uint64  // not operational
		 832   64  RxBadVESWID  uint64
		 896   64  reserved
		 960   64  RxRunt       uint64
		1024   64  RxOversize   uint64
		1088   64  reserved
		1152   64  RxEthDown    uint64  // always 0
		1216   64  RxDropState  uint64  // not operational
		1280   64  RxLogic      uint64  // no memory
		1344 1088  reserved`},
}

// SPDX-License-Identifier: Apache-2.0

package main

// notices are notices, and the details of their kinds: the 54 octets from octet 10 of a Notice on.
var notices = []layout{
	{name: "Notice", source: "IBA volume 1, 13.4.8.2",
		doc: `Notice reports an event. It is the attribute of a trap; reports of subnet administration have a
NoticeRecord.`, fields: `
		 0   1  Generic     bool
		 1   7  Type        NoticeType
		 8  24  Producer    Producer
		32  16  TrapNumber  TrapNumber
		48  16  IssuerLID   ib.LID
		64   1  Toggle      bool
		65  15  Count       uint16
		80 432  Details     [noticeDetails]byte`},
	{name: "NoticeRecord", source: "IBA volume 1, 13.4.8.2",
		doc: "NoticeRecord is a notice as subnet administration reports it.", fields: `
		  0 512  Notice     embedded
		512 128  IssuerGID  ib.GID`},
	{name: "LocalChange", part: true, source: "IBA volume 1, 14.2.5.1, trap 144",
		doc: `LocalChange is the details of trap 144: the capabilities of a port changed, or with Other that which Flags
name.`, fields: `
		  0  16  reserved
		 16  16  LID              ib.LID
		 32  15  reserved
		 47   1  Other            bool
		 48  32  CapabilityMask   Capability
		 80  16  Flags            uint16
		 96  16  CapabilityMask2  Capability2
		112 320  reserved`},
	{name: "BadMKey", part: true, source: "IBA volume 1, 14.2.5.1, trap 256",
		doc: "BadMKey is the details of trap 256: an SMP had a wrong M_Key.", fields: `
		  0  16  reserved
		 16  16  LID          ib.LID
		 32  16  DrSLID       ib.LID
		 48   8  Method       Method
		 56   8  reserved
		 64  16  AttributeID  AttributeID
		 80  32  Modifier     uint32
		112  64  MKey         uint64
		176   8  reserved
		184   1  Directed     bool
		185   1  Truncated    bool         // the return path was longer
		186   6  Hops         uint8
		192 240  ReturnPath   [maxNoticePath]uint8`},
	{name: "BadKeyAtPort", of: "BadKey", part: true, source: "IBA volume 1, 14.2.5.1, traps 257 and 258", fields: `
		  0  16  reserved
		 16  16  LID1  ib.LID
		 32  16  LID2  ib.LID
		 48  32  Key   uint32
		 80   4  SL    uint8
		 84   4  reserved
		 88  24  QP1   ib.QPN
		112   8  reserved
		120  24  QP2   ib.QPN
		144 128  GID1  ib.GID
		272 128  GID2  ib.GID
		400  32  reserved`},
	{name: "BadKeyAtSwitch", of: "BadKey", part: true, source: "IBA volume 1, 14.2.5.1, trap 259", fields: `
		  0  16  DataValid  uint16
		 16  16  LID1       ib.LID
		 32  16  LID2       ib.LID
		 48  16  Key        uint32
		 64   4  SL         uint8
		 68   4  reserved
		 72  24  QP1        ib.QPN
		 96   8  reserved
		104  24  QP2        ib.QPN
		128 128  GID1       ib.GID
		256 128  GID2       ib.GID
		384  16  SwitchLID  ib.LID
		400   8  Port       uint8
		408  24  reserved`},
}

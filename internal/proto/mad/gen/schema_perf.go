// SPDX-License-Identifier: Apache-2.0

package main

// performance are the attributes of performance management, and the one in which each class describes itself.
var performance = []layout{
	{name: "Target", part: true, source: "IBA volume 1, 13.4.8.1",
		doc: "Target is where a class of a port sends to: redirected requests, or traps.", fields: `
		  0 128  GID        ib.GID
		128   8  TClass     uint8
		136   4  SL         uint8
		140  20  FlowLabel  uint32
		160  16  LID        ib.LID
		176  16  PKey       ib.PKey
		192   8  HopLimit   uint8    // of traps; reserved of redirection
		200  24  QPN        ib.QPN
		224  32  QKey       ib.QKey`},
	{name: "ClassPortInfo", source: "IBA volume 1, 13.4.8.1",
		doc: "ClassPortInfo describes how a port serves a class.", fields: `
		  0   8  BaseVersion         uint8
		  8   8  ClassVersion        uint8
		 16  16  CapabilityMask      uint16
		 32  27  CapabilityMask2     uint32
		 59   5  RespTimeValue       uint8
		 64   0  Redirect            Target   // without a HopLimit
		 64 128  Redirect.GID        ib.GID
		192   8  Redirect.TClass     uint8
		200   4  Redirect.SL         uint8
		204  20  Redirect.FlowLabel  uint32
		224  16  Redirect.LID        ib.LID
		240  16  Redirect.PKey       ib.PKey
		256   8  reserved
		264  24  Redirect.QPN        ib.QPN
		288  32  Redirect.QKey       ib.QKey
		320 256  Trap                Target`},
	{name: "PortCounters", source: "IBA volume 1, 16.1.3.5",
		doc: "PortCounters are the counters of a port that saturate: on the wire each stays at its Max.", fields: `
		  0   8  reserved
		  8   8  PortSelect                           uint8
		 16  16  CounterSelect                        uint16
		 32   0  Values                               [NumCounters]uint64  // by Counter
		 32  16  Values[CounterSymbolErrors]          uint64  saturating
		 48   8  Values[CounterLinkErrorRecovery]     uint64  saturating
		 56   8  Values[CounterLinkDowned]            uint64  saturating
		 64  16  Values[CounterRcvErrors]             uint64  saturating
		 80  16  Values[CounterRcvRemotePhysErrors]   uint64  saturating
		 96  16  Values[CounterRcvSwitchRelayErrors]  uint64  saturating
		112  16  Values[CounterXmitDiscards]          uint64  saturating
		128   8  Values[CounterXmitConstraintErrors]  uint64  saturating
		136   8  Values[CounterRcvConstraintErrors]   uint64  saturating
		144   8  CounterSelect2                       uint8
		152   4  Values[CounterLocalLinkIntegrity]    uint64  saturating
		156   4  Values[CounterBufferOverrun]         uint64  saturating
		160  16  Values[CounterQP1Dropped]            uint64  saturating
		176  16  Values[CounterVL15Dropped]           uint64  saturating
		192  32  Values[CounterXmitData]              uint64  saturating
		224  32  Values[CounterRcvData]               uint64  saturating
		256  32  Values[CounterXmitPkts]              uint64  saturating
		288  32  Values[CounterRcvPkts]               uint64  saturating
		320  32  Values[CounterXmitWait]              uint64  saturating`},
	{name: "PortCountersExtended", source: "IBA volume 1, 16.1.4.11",
		doc: `PortCountersExtended are the counters of a port that wrap. A bit of CounterSelect selects each, in the order
of the fields.`, fields: `
		  0   8  reserved
		  8   8  PortSelect      uint8
		 16  16  CounterSelect   uint16
		 32  32  CounterSelect2  uint32
		 64  64  XmitData        uint64  // units of 4 bytes
		128  64  RcvData         uint64  // units of 4 bytes
		192  64  XmitPkts        uint64
		256  64  RcvPkts         uint64
		320  64  UnicastXmit     uint64
		384  64  UnicastRcv      uint64
		448  64  MulticastXmit   uint64
		512  64  MulticastRcv    uint64`},
}

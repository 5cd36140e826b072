// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

// writePortInfo executes a Set of PortInfo (IBA volume 1, 14.2.5.6): it validates all values, then applies all.
func (a *Agent) writePortInfo() mad.Status {
	m := a.smp.AttributeModifier
	n, p := a.portOf(uint8(m))
	if p == nil || m&^(mad.ModifierExtendedSpeeds|0xff) != 0 {
		return mad.StatusInvalidValue
	}
	var w mad.PortInfo
	w.Parse(a.smp.Data[:]) // long enough
	extended := m&mad.ModifierExtendedSpeeds != 0
	if !linkValuesOK(n, &p.info, &w, extended) || n == a.endPort() && !endValuesOK(&w, n == 0 && !a.cfg.EnhancedPort0) {
		return mad.StatusInvalidValue
	}
	what := Change(0)
	if n == a.endPort() {
		what = a.applyEnd(&p.info, &w)
	}
	if n != 0 {
		what |= applyLink(&p.info, &w, extended)
		if a.isSwitch() && a.cfg.EnforceCap > 0 && (p.info.PartitionEnforceIn != w.PartitionEnforceIn ||
			p.info.PartitionEnforceOut != w.PartitionEnforceOut) {
			p.info.PartitionEnforceIn, p.info.PartitionEnforceOut = w.PartitionEnforceIn, w.PartitionEnforceOut
			what |= ChangedPKeys
		}
		what |= a.applyState(n, p, w.PortState, w.PortPhysicalState)
	}
	a.changed(n, what)
	return mad.StatusOK
}

// linkValuesOK validates the fields of every port.
func linkValuesOK(n uint8, i, w *mad.PortInfo, extended bool) bool {
	subset := func(v, supported, all uint8) bool { return v == all || v&^supported == 0 }
	if !subset(uint8(w.LinkWidthEnabled), uint8(i.LinkWidthSupported), uint8(ib.WidthAllSupported)) ||
		!subset(uint8(w.LinkSpeedEnabled), uint8(i.LinkSpeedSupported), uint8(ib.SpeedAllSupported)) {
		return false
	}
	if extended && w.LinkSpeedExtEnabled != ib.SpeedExtDisable &&
		!subset(uint8(w.LinkSpeedExtEnabled), uint8(i.LinkSpeedExtSupported), uint8(ib.SpeedExtAll)) {
		return false
	}
	if w.LinkDownDefaultState > ib.PhysPolling || w.PortPhysicalState > ib.PhysDisabled {
		return false
	}
	if w.NeighborMTU > i.MTUCap || w.OperationalVLs > i.VLCap {
		return false
	}
	if n == 0 { // a manager cannot change the state of port 0 of a switch
		return w.PortState == ib.PortNoChange || w.PortState >= ib.PortArmed && w.PortState <= ib.PortActive
	}
	switch w.PortState {
	case ib.PortNoChange, ib.PortDown:
		return true
	case ib.PortArmed:
		return i.PortState == ib.PortInit || i.PortState == ib.PortArmed
	case ib.PortActive:
		return i.PortState == ib.PortArmed || i.PortState == ib.PortActive
	}
	return false
}

// endValuesOK validates the fields of ports with a LID.
func endValuesOK(w *mad.PortInfo, base bool) bool {
	if w.LID >= ib.LIDMulticastFirst || w.MasterSMLID >= ib.LIDMulticastFirst || w.LID&(1<<w.LMC-1) != 0 || base &&
		w.LMC != 0 {
		return false
	}
	return true
}

// applyEnd applies the fields of ports with a LID.
func (a *Agent) applyEnd(i, w *mad.PortInfo) (what Change) {
	if w.LID != i.LID || w.LMC != i.LMC {
		i.LID, i.LMC = w.LID, w.LMC
		what |= ChangedLID
	}
	if w.MasterSMLID != i.MasterSMLID || w.MasterSMSL != i.MasterSMSL {
		i.MasterSMLID, i.MasterSMSL = w.MasterSMLID, w.MasterSMSL
		what |= ChangedSM
	}
	if w.GIDPrefix != i.GIDPrefix && w.GIDPrefix != 0 {
		i.GIDPrefix = w.GIDPrefix
		what |= ChangedGIDs
	}
	if w.SubnetTimeOut != i.SubnetTimeOut {
		i.SubnetTimeOut = w.SubnetTimeOut
		what |= ChangedTimeouts
	}
	if w.MKey != i.MKey || w.MKeyProtectBits != i.MKeyProtectBits || w.MKeyLeasePeriod != i.MKeyLeasePeriod {
		i.MKey, i.MKeyProtectBits, i.MKeyLeasePeriod = w.MKey, w.MKeyProtectBits, w.MKeyLeasePeriod
		a.lease = 0
		what |= ChangedOther
	}
	i.McastPKeyTrapSuppress = 0
	if i.CapabilityMask&mad.CapMcastPKeyTrapSuppression != 0 {
		i.McastPKeyTrapSuppress = w.McastPKeyTrapSuppress
	}
	// A manager can reset counters of violations, and cannot set them to another value.
	if w.MKeyViolations == 0 {
		i.MKeyViolations = 0
	}
	if w.PKeyViolations == 0 && i.PKeyViolations != 0 {
		i.PKeyViolations = 0
		what |= ChangedOther
	}
	if w.QKeyViolations == 0 && i.QKeyViolations != 0 {
		i.QKeyViolations = 0
		what |= ChangedOther
	}
	if w.ClientReregister && i.CapabilityMask&mad.CapClientReregistration != 0 {
		what |= ClientReregister
	}
	return what
}

// applyLink applies the fields of ports with a link. The value 0 leaves widths, speeds, the MTU and lanes unchanged.
func applyLink(i, w *mad.PortInfo, extended bool) (what Change) {
	switch w.LinkWidthEnabled {
	case 0:
	case ib.WidthAllSupported:
		i.LinkWidthEnabled = i.LinkWidthSupported
	default:
		i.LinkWidthEnabled = w.LinkWidthEnabled
	}
	switch w.LinkSpeedEnabled {
	case 0:
	case ib.SpeedAllSupported:
		i.LinkSpeedEnabled = i.LinkSpeedSupported
	default:
		i.LinkSpeedEnabled = w.LinkSpeedEnabled
	}
	if extended {
		switch w.LinkSpeedExtEnabled {
		case 0:
		case ib.SpeedExtAll:
			i.LinkSpeedExtEnabled = i.LinkSpeedExtSupported
		default:
			i.LinkSpeedExtEnabled = w.LinkSpeedExtEnabled
		}
	}
	if w.NeighborMTU != 0 && w.NeighborMTU != i.NeighborMTU {
		i.NeighborMTU = w.NeighborMTU
		what |= ChangedMTU
	}
	if w.OperationalVLs != 0 && w.OperationalVLs != i.OperationalVLs {
		i.OperationalVLs = w.OperationalVLs
		what |= ChangedVLs
	}
	if w.LinkDownDefaultState != 0 {
		i.LinkDownDefaultState = w.LinkDownDefaultState
	}
	i.VLHighLimit, i.VLStallCount, i.HOQLife = w.VLHighLimit, w.VLStallCount, w.HOQLife
	i.LocalPhyErrors, i.OverrunErrors = w.LocalPhyErrors, w.OverrunErrors
	return what
}

// applyState moves a port through its states, which linkValuesOK has validated, and issues the order for its link.
func (a *Agent) applyState(n uint8, p *port, state ib.PortState, phys ib.PhysState) (what Change) {
	i := &p.info
	up := i.PortPhysicalState == ib.PhysLinkUp
	switch {
	case phys == ib.PhysDisabled || phys == ib.PhysSleep:
		if !p.off {
			p.off = true
			a.order(n, LinkDisable)
		}
		if i.PortPhysicalState != phys {
			i.PortPhysicalState, i.PortState = phys, ib.PortDown
			if !up {
				return ChangedState
			}
			// The link is down: managers that did not order it receive a trap.
			a.linkChanged(a.now, n)
		}
		return 0
	case phys == ib.PhysPolling && p.off:
		p.off = false
		if !p.disabled {
			i.PortPhysicalState = ib.PhysPolling
		}
		a.order(n, LinkEnable)
		return ChangedState
	case up && (phys == ib.PhysPolling || state == ib.PortDown):
		a.order(n, LinkBounce)
	case state >= ib.PortArmed && i.PortState != state:
		i.PortState = state
		return ChangedState
	}
	return 0
}

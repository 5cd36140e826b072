// SPDX-License-Identifier: Apache-2.0

package sm_test

import (
	"testing"
	"time"

	"weft/internal/mgmt/sm"
	"weft/internal/proto/mad"
)

// TestCaretakerYields: a caretaker manages a subnet without a master, and yields to one, although it precedes it by
// priority; it follows when that one ends.
func TestCaretakerYields(t *testing.T) {
	s := newSmall(1)
	s.Attach(s.c1, sm.Config{Priority: 15, Gated: true}, sm.Intent{}, sm.Observations{})
	s.c1.Manager.Caretake(s.Now, 7)
	elected(t, s, 10*time.Second, s.c1)

	s.Attach(s.c2, sm.Config{Priority: 0, Gated: true}, sm.Intent{}, sm.Observations{})
	s.c2.Manager.Permit(s.Now, 8)
	// The elected manager finds a master that precedes it: it would hand over to every other one.
	s.Until(time.Minute, func() bool { return masterOf(s.c1, s.c2) == s.c2 })
	if st := s.c1.Manager.Status(); st.State == "master" {
		t.Errorf("the caretaker is %+v", st)
	}
	s.Run(time.Minute)
	elected(t, s, 30*time.Second, s.c2, s.c1)
	s.Detach(s.c2)
	elected(t, s, time.Minute, s.c1)

	// Of several caretakers one manages.
	s.Attach(s.c2, sm.Config{Priority: 15, Gated: true}, sm.Intent{}, sm.Observations{})
	s.c2.Manager.Caretake(s.Now, 7)
	s.Attach(s.c3, sm.Config{Priority: 14, Gated: true}, sm.Intent{}, sm.Observations{})
	s.c3.Manager.Caretake(s.Now, 7)
	s.Run(time.Minute)
	elected(t, s, 0, s.c1, s.c2, s.c3)
	s.Detach(s.c1)
	elected(t, s, time.Minute, s.c2, s.c3)
	s.Attach(s.c1, sm.Config{Priority: 15, Gated: true}, sm.Intent{}, sm.Observations{})
	s.c1.Manager.Caretake(s.Now, 7)
	elected(t, s, 2*time.Minute, s.c1, s.c2, s.c3) // its GUID is the lowest
	s.Detach(s.c2)
	s.Detach(s.c3)

	// Elected by the store, it is a manager as any other, and takes what is handed over.
	s.c1.Manager.Permit(s.Now, 9)
	s.Attach(s.c3, sm.Config{Priority: 1, Gated: true}, sm.Intent{}, sm.Observations{})
	s.c3.Manager.Permit(s.Now, 9)
	s.Run(time.Minute)
	elected(t, s, 30*time.Second, s.c1, s.c3)
}

// TestCaretakerWaits: a caretaker changes nothing while a manager gives no answer. It may be the master, and what it
// configured later than the caretaker's copy.
func TestCaretakerWaits(t *testing.T) {
	s := newSmall(1)
	s.Attach(s.c2, sm.Config{}, sm.Intent{}, sm.Observations{})
	s.Detach(s.c2)
	s.c2.Agent.SetCapability(s.Now, mad.CapIsSM, true)
	m := s.Attach(s.c1, sm.Config{Gated: true}, sm.Intent{}, sm.Observations{})
	m.Caretake(s.Now, 7)
	s.Run(time.Minute)
	if m.State() == mad.SMMaster || m.Topo() != nil || s.c1.Agent.LID() != 0 || s.c3.Agent.LID() != 0 {
		t.Errorf("it manages beside a manager that gives no answer: %+v", m.Status())
	}
	s.c2.Agent.SetCapability(s.Now, mad.CapIsSM, false)
	elected(t, s, time.Minute, s.c1)
}

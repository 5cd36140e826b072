// SPDX-License-Identifier: Apache-2.0

package etcd

// counted lists the members of the replicas that have to have certificates of the new CAs before a replica starts
// again; removed reports that the leader is none of them. A leader that was removed from the fabric does not count, nor
// do others that were: no voter reports to it, so that it cannot hand its part over and remove itself, and its
// connections are from before. The replicas that start again refuse it, and elect another. Where the voters that stay
// are no majority, it counts: they could not go on without it.
func (s *Security) counted(in *Server) (names []string, removed bool) {
	out := s.Out
	if out == nil {
		out = func(string) bool { return false }
	}
	leader := in.etcd.leader()
	voters, stay := 0, 0
	var staying []string
	for _, r := range in.Replicas() {
		names = append(names, r.Name)
		removed = removed || r.ID == leader && out(r.Name)
		if !out(r.Name) {
			staying = append(staying, r.Name)
		}
		if !r.Learner {
			voters++
			if !out(r.Name) {
				stay++
			}
		}
	}
	if removed && stay > voters/2 {
		return staying, true
	}
	return names, false
}

// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fakeIPoIB records its requests.
type fakeIPoIB struct{ asked []any }

func (f *fakeIPoIB) IPLinks(context.Context) ([]IPLink, error) {
	return []IPLink{{Name: "ib0_1_7fff"}}, nil
}
func (f *fakeIPoIB) AddIPLinks(_ context.Context, r IPRequest) ([]IPLink, error) {
	f.asked = append(f.asked, r)
	return nil, nil
}
func (f *fakeIPoIB) DelIPLinks(_ context.Context, name string) error {
	f.asked = append(f.asked, name)
	return nil
}
func (f *fakeIPoIB) IPNeighbours(_ context.Context, link string) ([]IPNeighbour, error) {
	return []IPNeighbour{{Link: link}}, nil
}
func (f *fakeIPoIB) IPShadow(_ context.Context, link string) ([]IPShadow, error) {
	return []IPShadow{{Link: link}}, nil
}
func (f *fakeIPoIB) IPPaths(context.Context, string) ([]IPPath, error) { return nil, nil }
func (f *fakeIPoIB) IPGroups(_ context.Context, link string) ([]IPGroup, error) {
	return []IPGroup{{Link: link}}, nil
}
func (f *fakeIPoIB) IPStats(context.Context, string) ([]Counter, error)  { return nil, nil }
func (f *fakeIPoIB) IPParams(context.Context, string) ([]IPParam, error) { return nil, nil }
func (f *fakeIPoIB) IPEvents(_ context.Context, after uint64, wait bool) ([]IPEvent, error) {
	f.asked = append(f.asked, after, wait)
	return []IPEvent{{Number: after + 1}}, nil
}
func (f *fakeIPoIB) IPPath(_ context.Context, q IPPathQuery) (IPPathInfo, error) {
	return IPPathInfo{Addr: q.Addr, Errno: 6}, nil
}
func (f *fakeIPoIB) IPDo(_ context.Context, link string, a IPAction) error {
	f.asked = append(f.asked, link, a)
	return nil
}

func TestIPoIB(t *testing.T) {
	b := &fake{}
	c, ctx := client(t, serve(t, b, FullAccess, nil)), t.Context()
	want := func(got, want any) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	l, err := Get(ctx, c, ListIPLinks)
	want(err, nil)
	want(l, []IPLink{{Name: "ib0_1_7fff", Flags: []string{}, Addrs: []string{}}})
	r := IPRequest{Device: "weft_ib0", PKeys: []string{"0x8014"}, Backend: BackendTUN, Addrs: []string{"10.0.0.1/8"},
		Routes: []string{"10.9.0.0/16=10.0.0.9"}}
	l, err = Call(ctx, c, AddIPLinks, r)
	want(err, nil)
	want(l, []IPLink{})
	want(Do(ctx, c, DeleteIPLinks, IPLinkDelete{Name: "a/b"}), nil)
	want(Do(ctx, c, ChangeIPLink, Named[IPAction]{Name: "ib0_1_7fff", Value: IPAction{Op: IPProbe,
		Addr: "10.0.0.2"}}), nil)
	e, err := Call(ctx, c, ListIPEvents, EventQuery{After: 7, Wait: true})
	want(err, nil)
	want(e, []IPEvent{{Number: 8}})
	want(b.asked, []any{r, "a/b", "ib0_1_7fff", IPAction{Op: IPProbe, Addr: "10.0.0.2"}, uint64(7), true})
	n, err := Call(ctx, c, ListIPNeighbours, "x y")
	want(err, nil)
	want(n, []IPNeighbour{{Link: "x y"}})
	s, err := Call(ctx, c, ListIPShadow, "x")
	want(err, nil)
	want(s, []IPShadow{{Link: "x", Addrs: []string{}}})
	g, err := Call(ctx, c, ListIPGroups, "x")
	want(err, nil)
	want(g, []IPGroup{{Link: "x", Addrs: []string{}}})
	paths, err := Call(ctx, c, ListIPPaths, "")
	want(err, nil)
	want(paths, []IPPath{})
	stats, err := Call(ctx, c, ListIPCounters, "")
	want(err, nil)
	want(stats, []Counter{})
	named, err := Call(ctx, c, ListIPParams, "")
	want(err, nil)
	want(named, []IPParam{})
	p, err := Call(ctx, c, ResolveIPPath, IPPathQuery{Addr: "10.0.0.2"})
	want(err, nil)
	want(p.Errno, 6)
}

func TestIPoIBAccess(t *testing.T) {
	b := &fake{}
	c, ctx := client(t, serve(t, b, ReadAccess, nil)), t.Context()
	_, err := Call(ctx, c, AddIPLinks, IPRequest{Backend: BackendTUN})
	for _, err := range []error{err, Do(ctx, c, DeleteIPLinks, IPLinkDelete{Name: "x"}), Do(ctx, c, ChangeIPLink,
		Named[IPAction]{Name: "x", Value: IPAction{}})} {
		if e, ok := err.(*Error); !ok || e.Code != CodeRefused {
			t.Errorf("a reader may change things: %v", err)
		}
	}
	if len(b.asked) > 0 {
		t.Error(b.asked)
	}
}

func TestIPRequestValidate(t *testing.T) {
	for why, r := range map[string]IPRequest{
		"a P_Key is":          {Backend: BackendTUN, PKeys: []string{"0x8000"}},
		"the back end must":   {Backend: "tap"},
		"has a prefix length": {Backend: BackendTUN, Device: "d", Addrs: []string{"10.0.0.1"}},
		"a route is PREFIX=":  {Backend: BackendTUN, Device: "d", Routes: []string{"10.0.0.0/8=gw"}},
		"not \"10.0.0.0/8\"":  {Backend: BackendNetstack, Device: "d", Routes: []string{"10.0.0.0/8"}},
		"are for one link":    {Backend: BackendTUN, Addrs: []string{"10.0.0.1/8"}},
		"one P_Key at most": {Backend: BackendTUN, Device: "d", PKeys: []string{"1", "2"},
			Addrs: []string{"10.0.0.1/8"}},
		"SOCKS are for": {Backend: BackendTUN, SOCKS: "127.0.0.1:1"},
		"tcp or udp": {Backend: BackendNetstack, Forwards: []IPForward{{Network: "sctp", Listen: "1.1.1.1:1",
			To: "1.1.1.1:1"}}},
		"from ADDRESS:PORT": {Backend: BackendNetstack, Forwards: []IPForward{{Network: "tcp", Listen: "1",
			To: "1.1.1.1:1"}}},
		"SOCKS listens": {Backend: BackendNetstack, SOCKS: "x"},
	} {
		if err := r.Validate(); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%+v: %v, want %q", r, err, why)
		}
	}
	ok := IPRequest{Device: "d", Backend: BackendNetstack, PKeys: []string{"0x14"}, Addrs: []string{"10.0.0.1/8",
		"fd00::1/64"}, Routes: []string{"0.0.0.0/0=10.0.0.9"},
		Forwards: []IPForward{{Network: "udp", Listen: "127.0.0.1:1", To: "[fd00::2]:2"}}, SOCKS: "127.0.0.1:1080"}
	if err := ok.Validate(); err != nil {
		t.Error(err)
	}
}

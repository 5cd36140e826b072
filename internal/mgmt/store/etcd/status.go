// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"weft/internal/mgmt/store"
)

// Status implements store.Store.
func (c *Client) Status(ctx context.Context) store.Status {
	st := store.Status{Kind: "external", Endpoints: c.cli.Endpoints()}
	ask := st.Endpoints
	if c.server != nil {
		st.Kind, st.Dir, st.MaxBytes, st.Endpoints, ask = "embedded", c.server.dir, c.server.c.maxSize, nil, []string{""}
		if url := c.server.URL(); url != "" {
			st.Endpoints = []string{url}
		}
	}
	st.Down = c.status(ctx, ask, &st)
	return st
}

// status fills in etcd's status: of the first member in the list that answers.
func (c *Client) status(ctx context.Context, ask []string, st *store.Status) error {
	call, end, err := c.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	const what = "ask the store how it is"
	var got *clientv3.StatusResponse
	for _, endpoint := range ask {
		each, stop := context.WithTimeout(call, c.timeout/time.Duration(len(ask)))
		got, err = c.cli.Status(each, endpoint)
		stop()
		if err == nil {
			break
		}
	}
	if err != nil {
		return c.failed(ctx, what, err)
	}
	st.Version, st.SizeBytes, st.UsedBytes, st.Revision = got.Version, got.DbSize, got.DbSizeInUse, store.Rev(got.Header.Revision)
	members, err := c.cli.MemberList(call)
	if err != nil {
		return c.failed(ctx, what, err)
	}
	st.Members = len(members.Members)
	for _, m := range members.Members {
		if m.ID == got.Leader {
			st.Leader = m.Name
		}
	}
	switch {
	case got.Leader == 0:
		return c.failed(ctx, "use the store", rpctypes.ErrNoLeader)
	case slices.ContainsFunc(got.Errors, func(s string) bool {
		return strings.Contains(s,
			pb.AlarmType_NOSPACE.String())
	}):
		return c.failed(ctx, "put into the store", rpctypes.ErrNoSpace)
	case len(got.Errors) > 0:
		return c.failed(ctx, "use the store", errors.New(got.Errors[0]))
	}
	return c.unwatched()
}

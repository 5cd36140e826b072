// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weft/internal/mgmt/store"
)

// entry returns key and value of a response, in memory of their own.
func (c *Client) entry(kv *mvccpb.KeyValue) store.Entry {
	return store.Entry{
		Key:     strings.TrimPrefix(string(kv.Key), c.namespace),
		Value:   kv.Value,
		Created: store.Rev(kv.CreateRevision),
		Rev:     store.Rev(kv.ModRevision),
		Lease:   store.LeaseID(kv.Lease),
	}
}

// txnFailed is failed for a transaction; its lease may be the reason.
func (c *Client) txnFailed(ctx context.Context, t store.Txn, err error) error {
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		for _, op := range t.Do {
			if op.Lease != 0 {
				return store.LeaseEnded(op.Lease)
			}
		}
	}
	what := "write to the store"
	if len(t.Do) > 0 {
		what = "write " + t.Do[0].Key
	}
	return c.failed(ctx, what, err)
}

// failed returns the store's error for a failed call. ctx is the caller's.
func (c *Client) failed(ctx context.Context, what string, err error) error {
	if c.ctx.Err() != nil {
		return store.Closed()
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	e := &store.Error{Kind: store.ErrUnavailable, What: "cannot " + what, Why: "the store does not answer: " +
		reason(err), Err: err}
	embedded := c.server != nil
	where := strings.Join(c.cli.Endpoints(), ",")
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace):
		e.Kind, e.Why = store.ErrFull, "the store is full"
		e.Fix = "delete what is not needed; a node that embeds the store makes room within seconds, for a cluster see etcdctl compact, defrag and alarm disarm"
	case errors.Is(err, rpctypes.ErrRequestTooLarge), errors.Is(err, rpctypes.ErrTooManyOps):
		e.Kind, e.Why, e.Fix = store.ErrInvalid, "etcd at "+where+" takes less at once: "+
			err.Error(), "start etcd with --max-request-bytes 1572864 --max-txn-ops 128 or more"
	case errors.Is(err, rpctypes.ErrAuthFailed):
		e.Why, e.Fix = "etcd at "+where+" does not accept user and password",
			"write USER:PASSWORD to the file of --store-user-file"
	case errors.Is(err, rpctypes.ErrPermissionDenied), errors.Is(err, rpctypes.ErrUserEmpty),
		errors.Is(err, rpctypes.ErrInvalidAuthToken):
		e.Why = "etcd at " + where + " refuses this node: " + err.Error()
		e.Fix = "name a certificate or a user that may use " + c.namespace +
			": --store-cert-file or --store-user-file"
	case status.Code(err) == codes.ResourceExhausted:
		e.Why = "the members at " + where + " refuse it: " + status.Convert(err).Message()
		e.Fix = "it is taken in some minutes; if not, weft status and weft doctor, on this host"
	case status.Code(err) == codes.PermissionDenied:
		e.Why, e.Fix = "the members at "+where+" refuse it: "+status.Convert(err).Message(), "weft member list; weft status"
	case errors.Is(err, rpctypes.ErrNoLeader):
		e.Why, e.Fix = "the cluster of "+where+
			" has no leader", "start its other members: etcdctl endpoint status --cluster"
	case embedded && c.server.down() != "":
		return c.serverEnded()
	case embedded:
		e.Fix = "weft store status shows what is wrong with the store in " + c.server.dir
	default:
		e.Why = fmt.Sprintf("no answer from %s: %s", where, reason(err))
		e.Fix = "start it or make it reachable, or name another: weft up --store URL"
		if c.members {
			e.Fix = "start the members that have a copy of the store: weft member list, weft store status"
		}
	}
	return e
}

// isRefused reports whether etcd, or the members, refused a call: it fails again until roles or a certificate change.
func isRefused(err error) bool {
	for _, e := range []error{rpctypes.ErrPermissionDenied, rpctypes.ErrUserEmpty, rpctypes.ErrInvalidAuthToken,
		rpctypes.ErrAuthFailed} {
		if errors.Is(err, e) {
			return true
		}
	}
	var e *store.Error
	if errors.As(err, &e) && e.Err != nil {
		err = e.Err
	}
	return status.Code(err) == codes.PermissionDenied
}

// serverEnded is the error of a client when its server in this process has ended.
func (c *Client) serverEnded() error {
	return &store.Error{Kind: store.ErrUnavailable, What: "cannot use the store in " + c.server.dir,
		Why: c.server.down(),
		Fix: "see to its disk, then start the node again"}
}

// lastError precedes the cause in the text of a gRPC timeout.
const lastError = "latest balancer error: "

// explain keeps why there was no connection, which etcd's client would replace
// by "deadline exceeded".
func explain(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker,
	opts ...grpc.CallOption) error {
	err := next(ctx, method, req, reply, cc, opts...)
	if status.Code(err) == codes.DeadlineExceeded {
		if _, why, ok := strings.Cut(status.Convert(err).Message(), lastError); ok {
			return status.Error(codes.FailedPrecondition, why) // a code that is not tried again
		}
	}
	return err
}

// reason is an error of gRPC without the wrapping that no person needs.
func reason(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "it takes too long"
	}
	why := err.Error()
	if st, ok := status.FromError(err); ok {
		why = st.Message()
	}
	if _, desc, ok := strings.Cut(why, "desc = "); ok {
		why = strings.Trim(desc, `"`)
	}
	return strings.TrimPrefix(why, "transport: ")
}

// checkURL accepts the addresses that clients and listeners may have.
func checkURL(s string) error {
	u, err := url.Parse(s)
	why := ""
	switch {
	case err != nil:
		why = err.Error()
	case u.Scheme != "http" && u.Scheme != "https":
		why = "it must begin with http:// or https://"
	case u.Port() == "":
		why = "it has no port"
	case u.Path != "" || u.RawQuery != "" || u.User != nil:
		why = "it must end with the port"
	default:
		if _, err := net.LookupPort("tcp", u.Port()); err != nil {
			why = err.Error()
		}
	}
	if why == "" {
		return nil
	}
	return &store.Error{Kind: store.ErrInvalid, What: fmt.Sprintf("cannot use the store address %q", s), Why: why,
		Fix: "weft up --store http://10.0.0.1:2379"}
}

// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"

	"weft/internal/control/api"
)

// fakeCaptures is the part of the fake node that captures.
type fakeCaptures struct{}

func (fakeCaptures) Captures(context.Context) ([]api.Capture, error) { return nil, nil }
func (fakeCaptures) StopCapture(ctx context.Context, id int) error   { return nil }
func (fakeCaptures) Capture(_ context.Context, spec api.CaptureSpec, started func(api.Capture) error,
	write func([]byte) error) (api.Capture, error) {
	c := api.Capture{ID: 1, CaptureSpec: spec, Packets: spec.Count, Dropped: 2}
	if spec.Device == "nowhere" {
		return c, &api.Error{Code: api.CodeNotFound, What: "cannot capture", Why: "there is no device nowhere",
			Fix: "weft dev"}
	}
	if err := started(c); err != nil {
		return c, err
	}
	return c, write([]byte("the file\n"))
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"

	"weft/internal/api"
)

func (n *Node) Faults(context.Context) ([]api.Fault, error) { return nil, nil }
func (n *Node) AddFault(context.Context, api.FaultSpec) (api.Fault, error) {
	return api.Fault{}, errors.New("x")
}
func (n *Node) DelFault(context.Context, int) error { return errors.New("x") }

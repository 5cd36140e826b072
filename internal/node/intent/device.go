// SPDX-License-Identifier: Apache-2.0

package intent

import (
	"errors"

	"weft/internal/control/api"
	"weft/internal/node/subnet"
	"weft/internal/verbs/hca"
)

// ErrNameTaken is the error of a new function with the name of an existing device.
var ErrNameTaken = errors.New("a device has that name")

// NotAdded is the error of a request for a device, what, that failed with err. It has a fix where the name or the
// number of devices is the reason; any other err is returned as it is.
func NotAdded(what, name string, err error) error {
	e := &api.Error{Code: api.CodeConflict, What: what}
	switch {
	case errors.Is(err, ErrNameTaken):
		e.Why, e.Fix = "there is a device "+name, "choose another name"
	case errors.Is(err, subnet.ErrNoSwitchPort):
		e.Why, e.Fix = err.Error(), "delete a device, or start the node with more --switch-ports"
	case errors.Is(err, hca.ErrNoFunction):
		e.Why, e.Fix = "the node has made as many devices as it can number", "start it again"
	default:
		return err
	}
	return e
}

// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"net"
	"strings"
)

// notifySocket is the environment variable in which a service manager names the socket for the states of its service
// (sd_notify(3), unit type "notify").
const notifySocket = "NOTIFY_SOCKET"

// notify sends states, such as "READY=1", to the service manager that started this process. Without one it does nothing.
func (a *app) notify(states ...string) error {
	name := a.env.Getenv(notifySocket)
	if name == "" {
		return nil
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Net: "unixgram", Name: name}) // "@" begins an abstract name
	if err == nil {
		defer c.Close()
		_, err = c.Write([]byte(strings.Join(states, "\n")))
	}
	if err != nil {
		return fmt.Errorf("cannot notify the service manager: %w", err)
	}
	return nil
}

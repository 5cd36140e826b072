// SPDX-License-Identifier: Apache-2.0

// Package rocefront is a driver of the virtio-net RoCE device, written from the RFC's text ("virtio-net: Add RoCE
// (RDMA over Converged Ethernet) support", RFC v2, May 2022), the vhost-user specification and virtio 1.2.
//
// In: the socket of a device. Out: its control commands, queue pairs, completion queues and Ethernet queues, as Go
// values. Tests call it. It must never import a package of the device or use anything that the three texts do not
// state: then a device that serves this driver serves drivers of others, and a reading that differs becomes a failure.
//
// A Device and all that it makes belong to one goroutine.
package rocefront

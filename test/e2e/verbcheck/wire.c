/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to an end: a function call, or a TCP round trip. */
#define _GNU_SOURCE
#include "vc.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int full(int fd, void *p, size_t n, bool out)
{
	for (char *c = p; n;) {
		ssize_t k = out ? send(fd, c, n, MSG_NOSIGNAL) : recv(fd, c, n, 0);
		if (k < 0 && errno == EINTR)
			continue;
		if (k <= 0)
			return -1;
		c += k, n -= k;
	}
	return 0;
}

/* Sends at once, and ends with an error when the other host has not answered for a minute: one that has crashed
 * closes no connection. */
static void set_up(int fd)
{
	int on = 1, idle = 20, interval = 10, probes = 4;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

static int resolve(const char *host, const char *port, struct addrinfo **ai)
{
	struct addrinfo hint = { .ai_socktype = SOCK_STREAM, .ai_flags = host ? 0 : AI_PASSIVE,
		.ai_family = host ? AF_UNSPEC : AF_INET6 };
	int rc = getaddrinfo(host, port, &hint, ai);
	if (rc)
		fprintf(stderr, "verbcheck: %s port %s: %s\n", host ? host : "any address", port, gai_strerror(rc));
	return rc;
}

/* wire_serve executes the requests of one client and returns when it leaves:
 * 0 after a farewell, 1 if it vanished. */
int wire_serve(const char *port, struct exec *x)
{
	struct addrinfo *ai;
	static char payload[PAYLOAD];
	struct msg m;
	int on = 1, off = 0;

	if (resolve(NULL, port, &ai))
		return 2;
	int ls = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(ls, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	setsockopt(ls, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
	if (ls < 0 || bind(ls, ai->ai_addr, ai->ai_addrlen) || listen(ls, 1)) {
		fprintf(stderr, "verbcheck: listen on port %s: %s. fix: choose another with -p\n", port, strerror(errno));
		return 2;
	}
	freeaddrinfo(ai);
	printf("verbcheck: %s: waiting on port %s\n", exec_device(x), port);
	fflush(stdout);
	int fd = accept(ls, NULL, NULL);
	close(ls);
	set_up(fd);
	while (!full(fd, &m, sizeof m, false)) {
		if (m.len > PAYLOAD || full(fd, payload, m.len, false))
			break;
		exec_do(x, &m, payload);
		if (full(fd, &m, sizeof m, true) || full(fd, payload, m.len, true))
			break;
		if (m.op == OP_BYE)
			return 0;
	}
	fprintf(stderr, "verbcheck: the client vanished\n");
	return 1;
}

int wire_connect(const char *host, const char *port)
{
	struct addrinfo *ai;

	if (resolve(host, port, &ai))
		return NONE;
	for (int try = 0;; try++) {  /* the server may still be starting */
		for (struct addrinfo *a = ai; a; a = a->ai_next) {
			int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
			if (!connect(fd, a->ai_addr, a->ai_addrlen)) {
				set_up(fd);
				freeaddrinfo(ai);
				return fd;
			}
			close(fd);
		}
		if (try == 100) {
			fprintf(stderr, "verbcheck: connect to %s port %s: %s. fix: start verbcheck there first\n", host, port,
				strerror(errno));
			return NONE;
		}
		usleep(100000);
	}
}

/* call has e execute m; in goes along, and up to out_len bytes of the answer
 * come back. Returns the answer's rc. */
int call(struct end *e, struct msg *m, const void *in, size_t in_len, void *out, size_t out_len)
{
	static char payload[PAYLOAD];

	if (in_len > PAYLOAD) {
		fprintf(stderr, "verbcheck: request of %zu bytes\n", in_len);
		exit(2);
	}
	if (in_len)
		memcpy(payload, in, in_len);
	m->len = in_len;
	if (e->fd == NONE) {
		exec_do(e->x, m, payload);
	} else if (full(e->fd, m, sizeof *m, true) || full(e->fd, payload, m->len, true) ||
		   full(e->fd, m, sizeof *m, false) || m->len > PAYLOAD || full(e->fd, payload, m->len, false)) {
		printf("FAIL server: the connection to the server broke\n");
		exit(2);
	}
	if (out)
		memcpy(out, payload, m->len < out_len ? m->len : out_len);
	return m->rc;
}

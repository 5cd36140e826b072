// SPDX-License-Identifier: Apache-2.0
/*
 * The connection manager's device, linked with rdmacm.c, umad.c and paths.c: definitions in the
 * program stand in front of libc's as those of a preloaded library do. Threads play the node.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../weft_abi.h"
#include "check.h"
#include "own_dir.h"

#define CM "/dev/infiniband/rdma_cm"

static const char *dir;

/* --- the node -------------------------------------------------------------- */

static int listener;
static _Atomic int channel = -1;      /* of the last channel that was opened */
static _Atomic uint8_t channels;      /* opened so far: the first octet of their tokens */
static _Atomic int connections;       /* for commands, opened so far */
static _Atomic int commands, resumes;
static _Atomic uint32_t error, flags; /* for the next reply */
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static struct weft_cm_command newest; /* that is not a RESUME; guarded by mu */

static struct weft_cm_command seen(void)
{
	struct weft_cm_command m;

	pthread_mutex_lock(&mu);
	m = newest;
	pthread_mutex_unlock(&mu);
	return m;
}

static void *serve(void *arg)
{
	int c = (int)(intptr_t)arg;

	for (;;) {
		struct weft_cm_command m;
		struct weft_cm_answer a = { .length = 16 };

		if (recv(c, &m, sizeof(m), 0) != sizeof(m))
			break;
		a.error = error;
		a.flags = flags;
		if (m.command == WEFT_CM_RESUME) {
			CHECK(m.flags == WEFT_CM_NOTICED);
			resumes++;
			a.length = a.flags = a.error = 0;
		} else {
			pthread_mutex_lock(&mu);
			newest = m;
			pthread_mutex_unlock(&mu);
			commands++;
			error = flags = 0;
			memset(a.data, 0x5a, sizeof(a.data));
		}
		send(c, &a, sizeof(a), MSG_NOSIGNAL);
	}
	close(c);
	return NULL;
}

static void *node(void *arg)
{
	(void)arg;
	for (;;) {
		int c = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		struct weft_cm_open m;
		struct weft_cm_opened ok = { 0 };
		pthread_t t;

		if (c < 0)
			return NULL;
		CHECK(recv(c, &m, sizeof(m), 0) == sizeof(m) && m.version == WEFT_CM_VERSION);
		if (m.op == WEFT_CM_CHANNEL) {
			channel = c;
			ok.token[0] = ++channels;
			send(c, &ok, sizeof(ok), MSG_NOSIGNAL);
			continue;
		}
		CHECK(m.op == WEFT_CM_COMMANDS);
		connections++;
		send(c, &ok, sizeof(ok), MSG_NOSIGNAL);
		CHECK(pthread_create(&t, NULL, serve, (void *)(intptr_t)c) == 0);
		pthread_detach(t);
	}
}

static void notice(void)
{
	struct weft_cm_notice n = { 0 };

	CHECK(send(channel, &n, sizeof(n), 0) == sizeof(n));
}

/* --- the program ------------------------------------------------------------ */

struct command {
	uint32_t number;
	uint16_t in, out;
	uint64_t body[8];
};

static uint8_t got[64];

static ssize_t run(int fd, uint32_t number, uint16_t in, struct command *c)
{
	c->number = number;
	c->in = in;
	if (!c->out)
		c->out = sizeof(got);
	memset(got, 0, sizeof(got));
	return write(fd, c, 8 + in);
}

static struct command to_got(int at)
{
	struct command c = { 0 };

	c.body[at / 8] = (uintptr_t)got;
	return c;
}

static int readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

static void opens(void)
{
	struct stat st;
	int fd = open(CM, O_RDWR | O_CLOEXEC | O_NONBLOCK), null;

	CHECK(fd >= 0 && fstat(fd, &st) == 0 && S_ISCHR(st.st_mode));
	CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK && fcntl(fd, F_GETFD) & FD_CLOEXEC);
	CHECK(read(fd, got, 8) == -1 && errno == EINVAL);
	CHECK(write(fd, got, 4) == -1 && errno == EINVAL);
	/* What has the number now is none. */
	null = open("/dev/null", O_RDWR);
	CHECK(null >= 0 && dup2(null, fd) == fd);
	CHECK(fstat(fd, &st) == 0 && st.st_rdev != 0 && write(fd, got, 16) == 16);
	close(null);
	close(fd);
	close(channel);
}

static void runs(int fd)
{
	struct command c = to_got(8);
	uint64_t option = 0x1122334455667788;
	int copy, was = commands;

	CHECK(run(fd, WEFT_CM_CREATE_ID, 24, &c) == 32);
	CHECK(got[0] == 0x5a && got[15] == 0x5a && got[16] == 0);
	CHECK(seen().command == WEFT_CM_CREATE_ID && seen().token[0] == channels && seen().in_len == 24);
	for (int i = 8; i < 16; i++)
		CHECK(seen().data[i] == 0); /* the node sees no address */
	c = to_got(8);
	c.out = 4;
	CHECK(run(fd, WEFT_CM_CREATE_ID, 24, &c) == 32 && got[3] == 0x5a && got[4] == 0);
	error = EADDRINUSE;
	c = to_got(0);
	CHECK(run(fd, WEFT_CM_QUERY_ROUTE, 16, &c) == -1 && errno == EADDRINUSE && got[0] == 0);
	CHECK(commands == was + 3);
	/* Without the whole body, of no command, without an address for the answer. */
	c = to_got(0);
	c.number = WEFT_CM_QUERY_ROUTE;
	c.in = 40;
	CHECK(write(fd, &c, 24) == -1 && errno == EINVAL);
	CHECK(run(fd, WEFT_CM_WRITE_EVENT + 1, 16, &c) == -1 && errno == EINVAL);
	CHECK(run(fd, WEFT_CM_QUERY_ROUTE, 4, &c) == -1 && errno == EINVAL);
	memset(&c, 0, sizeof(c));
	CHECK(run(fd, WEFT_CM_QUERY_ROUTE, 16, &c) == -1 && errno == EFAULT);
	/* An option goes along. */
	memset(&c, 0, sizeof(c));
	c.body[0] = (uintptr_t)&option;
	c.body[2] = (uint64_t)8 << 32;
	was = commands;
	error = 0;
	CHECK(run(fd, WEFT_CM_SET_OPTION, 24, &c) == -1 && errno == EFAULT); /* the answer has nowhere to go */
	CHECK(commands == was + 1 && seen().option_len == 8 && !memcmp(seen().data + 24, &option, 8));
	c.body[2] = (uint64_t)489 << 32;
	CHECK(run(fd, WEFT_CM_SET_OPTION, 24, &c) == -1 && errno == EINVAL);
	c.body[0] = 0;
	c.body[2] = (uint64_t)8 << 32;
	CHECK(run(fd, WEFT_CM_SET_OPTION, 24, &c) == -1 && errno == EFAULT && commands == was + 1);
	/* A duplicate is the same channel. */
	copy = dup(fd);
	c = to_got(0);
	CHECK(run(copy, WEFT_CM_QUERY_ROUTE, 16, &c) == 24 && seen().token[0] == channels);
	close(copy);
}

static void woken(int sig)
{
	(void)sig;
}

static void *later(void *arg)
{
	usleep(20000);
	if (arg)
		pthread_kill(*(pthread_t *)arg, SIGUSR1);
	else
		notice();
	return NULL;
}

static void events(void)
{
	struct sigaction sa = { .sa_handler = woken };
	pthread_t self = pthread_self(), t;
	struct command c = to_got(0);
	int fd = open(CM, O_RDWR | O_NONBLOCK), was = commands, resumed;

	CHECK(fd >= 0);
	CHECK(run(fd, WEFT_CM_GET_EVENT, 8, &c) == -1 && errno == EAGAIN && commands == was);
	notice();
	CHECK(readable(fd));
	c = to_got(0);
	CHECK(run(fd, WEFT_CM_GET_EVENT, 8, &c) == 16 && seen().flags == WEFT_CM_NOTICED && got[0] == 0x5a);
	CHECK(!readable(fd));
	/* Another thread had the event. */
	notice();
	error = EAGAIN;
	CHECK(run(fd, WEFT_CM_GET_EVENT, 8, &c) == -1 && errno == EAGAIN && commands == was + 2);
	/* A notice for what has gone is taken back. */
	notice();
	resumed = resumes;
	flags = WEFT_CM_STALE;
	c = to_got(0);
	CHECK(run(fd, WEFT_CM_DESTROY_ID, 16, &c) == 24 && resumes == resumed + 1 && !readable(fd));
	flags = WEFT_CM_STALE;
	CHECK(run(fd, WEFT_CM_DESTROY_ID, 16, &c) == 24 && resumes == resumed + 1);
	/* One that waits is woken by an event, and by a signal. */
	CHECK(fcntl(fd, F_SETFL, 0) == 0);
	c = to_got(0);
	CHECK(pthread_create(&t, NULL, later, NULL) == 0);
	CHECK(run(fd, WEFT_CM_GET_EVENT, 8, &c) == 16);
	pthread_join(t, NULL);
	sigaction(SIGUSR1, &sa, NULL);
	CHECK(pthread_create(&t, NULL, later, &self) == 0);
	CHECK(run(fd, WEFT_CM_GET_EVENT, 8, &c) == -1 && errno == EINTR);
	pthread_join(t, NULL);
	close(fd);
	close(channel);
}

static void migrates(void)
{
	struct command c = to_got(0);
	int from = open(CM, O_RDWR | O_NONBLOCK), old = channel, token = channels;
	int to = open(CM, O_RDWR | O_NONBLOCK), resumed = resumes;
	struct weft_cm_notice n = { 0 };

	c.body[1] = (uint64_t)from << 32;
	CHECK(send(old, &n, sizeof(n), 0) == sizeof(n) && readable(from));
	flags = WEFT_CM_STALE_FROM;
	CHECK(run(to, WEFT_CM_MIGRATE_ID, 16, &c) == 24);
	CHECK(seen().from[0] == token && seen().token[0] == token + 1 && resumes == resumed + 1 && !readable(from));
	c = to_got(0);
	c.body[1] = (uint64_t)1 << 32;
	CHECK(run(to, WEFT_CM_MIGRATE_ID, 16, &c) == -1 && errno == EINVAL);
	c = to_got(0);
	c.body[1] = (uint64_t)9999 << 32;
	CHECK(run(to, WEFT_CM_MIGRATE_ID, 16, &c) == -1 && errno == ENOENT);
	close(from);
	close(old);
	close(to);
	close(channel);
}

/* A child shares the channel, and speaks by a connection of its own. */
static void forks(int fd)
{
	struct command c = to_got(0);
	int was = connections, status, child = fork();

	if (child == 0)
		_exit(run(fd, WEFT_CM_QUERY_ROUTE, 16, &c) == 24 && got[0] == 0x5a ? 0 : 1);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(connections == was + 1);
	c = to_got(0);
	CHECK(run(fd, WEFT_CM_QUERY_ROUTE, 16, &c) == 24 && connections == was + 1);
}

static void *many(void *arg)
{
	int fd = (int)(intptr_t)arg;

	for (int i = 0; i < 300; i++) {
		uint8_t out[64] = { 0 };
		struct command c = { .number = WEFT_CM_QUERY_ROUTE, .in = 16, .out = 16, .body = { (uintptr_t)out } };

		CHECK(write(fd, &c, 24) == 24 && out[15] == 0x5a);
	}
	return NULL;
}

/* A thread that is to be cancelled when it connects for commands: only a wait for
 * events may end in the middle. */
static void *cancelled(void *arg)
{
	uint8_t out[64] = { 0 };
	struct command c = { .number = WEFT_CM_QUERY_ROUTE, .in = 16, .out = 16, .body = { (uintptr_t)out } };

	pthread_cancel(pthread_self());
	CHECK(write((int)(intptr_t)arg, &c, 24) == 24 && out[15] == 0x5a);
	pthread_testcancel();
	return NULL;
}

static void cancels(int fd)
{
	struct command c = to_got(0);
	pthread_t t;
	void *end;

	CHECK(connections == 0);
	alarm(60); /* waits for what a thread that is gone held would last for ever */
	CHECK(pthread_create(&t, NULL, cancelled, (void *)(intptr_t)fd) == 0);
	pthread_join(t, &end);
	CHECK(end == PTHREAD_CANCELED && connections == 1);
	CHECK(run(fd, WEFT_CM_QUERY_ROUTE, 16, &c) == 24 && connections == 1);
	alarm(0);
}

static void threads(int fd)
{
	pthread_t t[4];

	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&t[i], NULL, many, (void *)(intptr_t)fd) == 0);
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
}

/* Many channels, at numbers far apart. */
static void crowd(void)
{
	int fd = open(CM, O_RDWR), high = fcntl(fd, F_DUPFD, 900), other;
	struct command c = to_got(0);

	CHECK(high >= 900 && run(high, WEFT_CM_QUERY_ROUTE, 16, &c) == 24);
	close(fd);
	for (int i = 0; i < 200; i++) {
		other = open(CM, O_RDWR);
		CHECK(other >= 0);
		c = to_got(0);
		CHECK(run(other, WEFT_CM_QUERY_ROUTE, 16, &c) == 24 && seen().token[0] == channels);
		close(other);
		close(channel);
	}
	close(high);
}

int main(int argc, char **argv)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	pthread_t t;
	int fd;

	(void)argc;
	dir = own_dir(argv, NULL, NULL);
	CHECK(open(CM, O_RDWR) == -1 && errno == ENXIO);
	snprintf(sa.sun_path, sizeof(sa.sun_path), "%s/rdmacm.sock", dir);
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	CHECK(bind(listener, (struct sockaddr *)&sa, sizeof(sa)) == 0 && listen(listener, 9) == 0);
	CHECK(pthread_create(&t, NULL, node, NULL) == 0);
	opens();
	fd = open(CM, O_RDWR);
	CHECK(fd >= 0);
	cancels(fd);
	runs(fd);
	events();
	migrates();
	forks(fd);
	threads(fd);
	crowd();
	/* The node ends: commands fail, and so does a wait for events. */
	shutdown(listener, SHUT_RDWR);
	pthread_join(t, NULL);
	close(listener);
	return finish("rdmacm_test");
}

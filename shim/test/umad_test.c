// SPDX-License-Identifier: Apache-2.0
/*
 * User MADs, linked with umad.c and paths.c: definitions in the program stand in front of
 * libc's as those of a preloaded library do. A thread plays the node.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/ioctl.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../weft_abi.h"
#include "check.h"
#include "own_dir.h"

ssize_t __read_chk(int fd, void *buf, size_t n, size_t room);
int __open_2(const char *path, int flags);

#define UMAD "/dev/infiniband/umad3"
#define ISSM "/dev/infiniband/issm3"
#define REGISTER_AGENT _IOC(_IOC_READ | _IOC_WRITE, 0x1b, 1, 28)
#define UNREGISTER_AGENT _IOC(_IOC_WRITE, 0x1b, 2, 4)
#define ENABLE_PKEY _IOC(_IOC_NONE, 0x1b, 3, 0)

static const char *dir;

/* --- the node -------------------------------------------------------------- */

static int listener;
static struct weft_umad_open opened; /* the last one */
static struct weft_umad_control asked;
static uint32_t open_error, control_error, header_len = 56;
static int peer = -1; /* of the last file that was opened */

static void *node(void *arg)
{
	(void)arg;
	for (;;) {
		uint8_t b[256];
		int c = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		ssize_t n;

		if (c < 0)
			return NULL;
		n = recv(c, b, sizeof(b), 0);
		if (n == sizeof(opened)) {
			struct weft_umad_opened m = { open_error, header_len, { 1, 2, 3 } };

			memcpy(&opened, b, sizeof(opened));
			peer = c;
			send(c, &m, sizeof(m), MSG_NOSIGNAL);
			continue;
		}
		CHECK(n == sizeof(asked));
		memcpy(&asked, b, sizeof(asked));
		struct weft_umad_controlled m = { control_error, header_len, { 0 } };

		memcpy(m.arg, asked.arg, sizeof(m.arg));
		m.arg[0] = 42;
		send(c, &m, sizeof(m), MSG_NOSIGNAL);
		close(c);
	}
}

static void put(const char *path, const char *text)
{
	char b[200];
	FILE *f;

	snprintf(b, sizeof(b), "%s/%s", dir, path);
	for (char *p = b + 1; (p = strchr(p, '/')); *p++ = '/') {
		*p = '\0';
		mkdir(b, 0755);
	}
	f = fopen(b, "w");
	CHECK(f && fputs(text, f) >= 0);
	fclose(f);
}

/* --- the program ------------------------------------------------------------ */

static uint8_t mad[4096], got[4096];

static void fill(void)
{
	for (size_t i = 0; i < sizeof(mad); i++)
		mad[i] = (uint8_t)(i * 7 + i / 256);
	memset(got, 0xa5, sizeof(got));
}

static void give(size_t n)
{
	CHECK(send(peer, mad, n, 0) == (ssize_t)n);
	memset(got, 0xa5, sizeof(got));
}

static void opens(void)
{
	int fd = open(UMAD, O_RDWR | O_NONBLOCK | O_CLOEXEC), other;

	CHECK(fd >= 0 && opened.op == WEFT_UMAD_OPEN && opened.version == WEFT_UMAD_VERSION);
	CHECK(!strcmp((char *)opened.device, "weft_ib7") && opened.port == 1);
	CHECK(opened.flags == WEFT_UMAD_NONBLOCK);
	CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK && fcntl(fd, F_GETFD) & FD_CLOEXEC);
	close(fd);
	close(peer);
	fd = __open_2(ISSM, O_RDWR);
	CHECK(fd >= 0 && opened.op == WEFT_UMAD_OPEN_ISSM && opened.flags == 0);
	CHECK(!(fcntl(fd, F_GETFL) & O_NONBLOCK) && !(fcntl(fd, F_GETFD) & FD_CLOEXEC));
	CHECK(read(fd, got, 400) == -1 && errno == EINVAL);
	CHECK(write(fd, mad, 320) == -1 && errno == EINVAL);
	CHECK(ioctl(fd, ENABLE_PKEY, NULL) == -1 && errno == ENOTTY);
	other = open(UMAD, O_RDWR);
	CHECK(other >= 0 && other != fd);
	close(fd);
	close(other);
	open_error = EAGAIN;
	CHECK(open(ISSM, O_RDWR | O_NONBLOCK) == -1 && errno == EAGAIN);
	open_error = 0;
	CHECK(open("/dev/infiniband/umad4", O_RDWR) == -1 && errno == ENOENT);
	CHECK(open("/dev/infiniband/umad3x", O_RDWR) == -1 && errno == ENOENT);
	CHECK(open("/dev/infiniband/umad", O_RDWR) == -1 && errno == ENOENT);
}

static void reads(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	CHECK(read(fd, got, 320) == -1 && errno == EAGAIN);
	CHECK(poll(&p, 1, 0) == 0);
	give(56 + 256);
	CHECK(poll(&p, 1, 1000) == 1 && p.revents == POLLIN);
	CHECK(read(fd, got, 55) == -1 && errno == EINVAL);
	CHECK(read(fd, got, 311) == -1 && errno == EINVAL && got[0] == 0xa5);
	CHECK(read(fd, got, 4000) == 312 && !memcmp(got, mad, 312) && got[312] == 0xa5);
	/* A timeout, shorter than a MAD. */
	give(56 + 24);
	CHECK(read(fd, got, 79) == -1 && errno == EINVAL);
	CHECK(read(fd, got, 320) == 80 && !memcmp(got, mad, 80));
	/* A long one: the first segment, then all. */
	give(3000);
	CHECK(read(fd, got, 311) == -1 && errno == EINVAL && got[0] == 0xa5);
	for (int i = 0; i < 2; i++) {
		memset(got, 0xa5, sizeof(got));
		CHECK(read(fd, got, 2999) == -1 && errno == ENOSPC);
		CHECK(!memcmp(got, mad, 312) && got[312] == 0xa5);
	}
	CHECK(__read_chk(fd, got, 3000, sizeof(got)) == 3000 && !memcmp(got, mad, 3000));
	CHECK(read(fd, got, 320) == -1 && errno == EAGAIN);
}

static void writes(int fd)
{
	int k;

	CHECK(write(fd, mad, 56 + 35) == -1 && errno == EINVAL);
	CHECK(write(fd, mad, 56 + 36) == 92);
	CHECK(write(fd, mad, 3000) == 3000);
	CHECK(recv(peer, got, sizeof(got), 0) == 92 && !memcmp(got, mad, 92));
	CHECK(recv(peer, got, sizeof(got), 0) == 3000 && !memcmp(got, mad, 3000));
	/* The other end goes on reading, so no write fails though the file does
	 * not block. */
	switch (fork()) {
	case 0:
		for (k = 0; k < 20000 && recv(peer, got, sizeof(got), 0) == 320; k++)
			;
		_exit(k == 20000 ? 0 : 1);
	default:
		for (k = 0; k < 20000 && write(fd, mad, 320) == 320; k++)
			;
		CHECK(k == 20000);
	}
	CHECK(wait(&k) > 0 && k == 0);
}

static void requests(int fd)
{
	uint8_t arg[28] = { 9, 8, 7 };
	uint32_t id = 5;
	int copy;

	header_len = 64;
	CHECK(ioctl(fd, ENABLE_PKEY, NULL) == 0 && asked.op == WEFT_UMAD_CONTROL && asked.number == 3);
	CHECK(asked.version == WEFT_UMAD_VERSION && asked.length == 0 && !memcmp(asked.token, "\1\2\3", 4));
	/* The header is longer from now on. */
	CHECK(write(fd, mad, 56 + 36) == -1 && errno == EINVAL);
	CHECK(ioctl(fd, REGISTER_AGENT, arg) == 0 && asked.number == 1 && asked.length == 28);
	CHECK(asked.arg[1] == 8 && asked.arg[2] == 7 && arg[0] == 42 && arg[1] == 8);
	CHECK(ioctl(fd, UNREGISTER_AGENT, &id) == 0 && asked.number == 2 && asked.arg[0] == 5 && id == 5);
	control_error = EINVAL;
	arg[0] = 9;
	CHECK(ioctl(fd, REGISTER_AGENT, arg) == -1 && errno == EINVAL && arg[0] == 42);
	control_error = 0;
	CHECK(ioctl(fd, REGISTER_AGENT, NULL) == -1 && errno == EFAULT);
	CHECK(ioctl(fd, _IOC(_IOC_READ, 0x1b, 1, 28), arg) == -1 && errno == ENOTTY);
	CHECK(ioctl(fd, _IOC(_IOC_NONE, 0x1b, 9, 0), NULL) == -1 && errno == ENOTTY);
	/* Requests of other kinds are the kernel's. */
	CHECK(ioctl(fd, FIONREAD, &copy) == 0 && copy == 0);
	asked.number = 0;
	copy = dup(fd);
	CHECK(ioctl(copy, ENABLE_PKEY, NULL) == 0 && asked.number == 3);
	close(copy);
}

/* A descriptor that the program closed and has another file under. */
static void reuse(void)
{
	int fd = open(UMAD, O_RDWR), pipes[2], other;

	CHECK(fd >= 0);
	close(peer);
	CHECK(pipe(pipes) == 0);
	CHECK(dup2(pipes[0], fd) == fd);
	CHECK(write(pipes[1], "abc", 3) == 3);
	CHECK(read(fd, got, 320) == 3 && !memcmp(got, "abc", 3));
	CHECK(ioctl(fd, ENABLE_PKEY, NULL) == -1 && errno == ENOTTY);
	close(fd);
	close(pipes[0]);
	close(pipes[1]);
	/* As often as one likes. */
	for (int i = 0; i < 300; i++) {
		other = open(UMAD, O_RDWR);
		CHECK(other >= 0);
		close(other);
		close(peer);
	}
}

static void *reader(void *arg)
{
	long n = 0;
	uint8_t b[400];

	while (n < 500 && read(*(int *)arg, b, sizeof(b)) == 320)
		n++;
	return (void *)n;
}

static void threads(void)
{
	int fd = open(UMAD, O_RDWR), kid;
	pthread_t t[2];
	void *n[2];

	for (int i = 0; i < 2; i++)
		CHECK(pthread_create(&t[i], NULL, reader, &fd) == 0);
	for (int i = 0; i < 1000; i++) {
		send(peer, mad, 320, 0);
		/* A child is not held up by what a thread of its parent holds. */
		if (i % 100 == 0) {
			kid = fork();
			if (kid == 0) {
				alarm(10);
				_exit(write(fd, mad, 30) == -1 && errno == EINVAL ? 0 : 1);
			}
			CHECK(waitpid(kid, &kid, 0) > 0 && kid == 0);
		}
	}
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(t[i], &n[i]) == 0);
	CHECK(n[0] == (void *)500 && n[1] == (void *)500);
	close(fd);
	close(peer);
}

static void gone(pthread_t t)
{
	int fd = open(UMAD, O_RDWR);
	struct pollfd p = { .fd = fd, .events = POLLIN };

	close(peer);
	CHECK(shutdown(listener, SHUT_RDWR) == 0);
	CHECK(pthread_join(t, NULL) == 0);
	CHECK(poll(&p, 1, 1000) == 1 && p.revents & POLLHUP);
	CHECK(read(fd, got, 320) == -1 && errno == EIO);
	CHECK(write(fd, mad, 320) == -1 && errno == EIO); /* and no signal */
	close(listener);
	CHECK(ioctl(fd, ENABLE_PKEY, NULL) == -1 && errno == EIO);
	CHECK(open(UMAD, O_RDWR) == -1 && errno == ENXIO);
	close(fd);
}

int main(int argc, char **argv)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	pthread_t t;
	int fd;

	(void)argc;
	dir = own_dir(argv, NULL, NULL);
	put("tree/sys/class/infiniband_mad/umad3/ibdev", "weft_ib7\n");
	put("tree/sys/class/infiniband_mad/umad3/port", "1\n");
	put("tree/sys/class/infiniband_mad/issm3/ibdev", "weft_ib7\n");
	put("tree/sys/class/infiniband_mad/issm3/port", "1\n");
	put("tree/dev/infiniband/umad3", "");
	snprintf(sa.sun_path, sizeof(sa.sun_path), "%s/umad.sock", dir);
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	CHECK(bind(listener, (struct sockaddr *)&sa, sizeof(sa)) == 0 && listen(listener, 9) == 0);
	CHECK(pthread_create(&t, NULL, node, NULL) == 0);
	fill();
	opens();
	fd = open(UMAD, O_RDWR | O_NONBLOCK);
	reads(fd);
	writes(fd);
	requests(fd);
	close(fd);
	close(peer);
	header_len = 56;
	reuse();
	threads();
	gone(t);
	return finish("umad_test");
}

// SPDX-License-Identifier: Apache-2.0
/*
 * Path redirection, linked with paths.c: definitions in the program stand in
 * front of libc's as those of a preloaded library do. The program builds a
 * tree and runs itself again once for each environment.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "../paths.h"
#include "check.h"

int __xstat(int ver, const char *path, struct stat *st);
int __lxstat(int ver, const char *path, struct stat *st);
int __fxstatat(int ver, int dir, const char *path, struct stat *st, int flags);
int __xstat64(int ver, const char *path, struct stat64 *st);
int __lxstat64(int ver, const char *path, struct stat64 *st);
int __fxstatat64(int ver, int dir, const char *path, struct stat64 *st, int flags);
int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);
int __openat_2(int dir, const char *path, int flags);
int __openat64_2(int dir, const char *path, int flags);
char *__realpath_chk(const char *path, char *resolved, size_t len);
ssize_t __readlink_chk(const char *path, char *buf, size_t size, size_t len);
ssize_t __readlinkat_chk(int dir, const char *path, char *buf, size_t size, size_t len);

#define DEV "/dev/infiniband/uverbs0"
#define SYS "/sys/class/infiniband/weft0"
#define FILE_ SYS "/node_guid"
#define NONE_ SYS "/gid_attrs/types/1" /* an unused entry's: empty in the tree */
#define TEXT "0000:1111:2222:3333\n"

/* A constructor of another library may come before that of paths.c. */
static int early = -2;
static mode_t early_mode;

static __attribute__((constructor(101))) void before(void)
{
	struct stat st;

	early = stat(DEV, &st);
	early_mode = st.st_mode;
}

static int reads_text(int fd)
{
	char b[64] = "";
	ssize_t n;

	if (fd < 0)
		return 0;
	n = read(fd, b, sizeof(b) - 1);
	close(fd);
	return n == (ssize_t)strlen(TEXT) && !strcmp(b, TEXT);
}

static int file_reads_text(FILE *f)
{
	char b[64] = "";
	int ok;

	if (!f)
		return 0;
	ok = fgets(b, sizeof(b), f) && !strcmp(b, TEXT);
	fclose(f);
	return ok;
}

static void with_tree(const char *dir)
{
	char tree[PATH_MAX + 8], want[PATH_MAX + 64], b[PATH_MAX + 16], *p;
	struct stat st;
	struct stat64 st64;
	struct statx stx;
	struct dirent **list;
	struct dirent64 **list64;
	DIR *d;
	int n;

	snprintf(tree, sizeof(tree), "%s/tree", dir);
	CHECK(early == 0 && S_ISCHR(early_mode));
	CHECK(weft_dir() && !strcmp(weft_dir(), dir));
	CHECK(weft_tree() && !strcmp(weft_tree(), tree));

	/* open */
	CHECK(reads_text(open(FILE_, O_RDONLY)));
	CHECK(reads_text(open64(FILE_, O_RDONLY)));
	CHECK(reads_text(openat(AT_FDCWD, FILE_, O_RDONLY)));
	CHECK(reads_text(openat64(-1, FILE_, O_RDONLY)));
	CHECK(reads_text(__open_2(FILE_, O_RDONLY)));
	CHECK(reads_text(__open64_2(FILE_, O_RDONLY)));
	CHECK(reads_text(__openat_2(-1, FILE_, O_RDONLY)));
	CHECK(reads_text(__openat64_2(-1, FILE_, O_RDONLY)));
	CHECK(file_reads_text(fopen(FILE_, "r")));
	CHECK(file_reads_text(fopen64(FILE_, "r")));
	CHECK(file_reads_text(freopen(FILE_, "r", fopen("/dev/null", "r"))));
	CHECK(file_reads_text(freopen64(FILE_, "r", fopen("/dev/null", "r"))));

	/* attributes that the kernel cannot read; empty files elsewhere can be read */
#define UNREADABLE(call, none) \
	do { \
		errno = 0; \
		CHECK((call) == (none) && errno == EINVAL); \
	} while (0)
	UNREADABLE(open(NONE_, O_RDONLY), -1);
	UNREADABLE(open64(NONE_, O_RDONLY), -1);
	UNREADABLE(openat(AT_FDCWD, NONE_, O_RDONLY), -1);
	UNREADABLE(openat64(-1, NONE_, O_RDONLY), -1);
	UNREADABLE(__open_2(NONE_, O_RDONLY), -1);
	UNREADABLE(__open64_2(NONE_, O_RDONLY), -1);
	UNREADABLE(__openat_2(-1, NONE_, O_RDONLY), -1);
	UNREADABLE(__openat64_2(-1, NONE_, O_RDONLY), -1);
	UNREADABLE(fopen(NONE_, "r"), NULL);
	UNREADABLE(fopen64(NONE_, "r"), NULL);
	UNREADABLE(freopen(NONE_, "r", fopen("/dev/null", "r")), NULL);
	UNREADABLE(freopen64(NONE_, "r", fopen("/dev/null", "r")), NULL);
	CHECK(stat(NONE_, &st) == 0 && S_ISREG(st.st_mode) && access(NONE_, R_OK) == 0);
	CHECK(reads_text(open(SYS "/gid_attrs/types/0", O_RDONLY)));
	n = open(SYS "/gid_attrs/types", O_RDONLY | O_DIRECTORY);
	CHECK(n >= 0);
	close(n);
	n = open(SYS "/empty", O_RDONLY);
	CHECK(n >= 0 && read(n, b, 1) == 0);
	close(n);

	/* modes of created files reach the kernel */
	snprintf(b, sizeof(b), "%s/created", dir);
	umask(0);
	n = open(b, O_CREAT | O_WRONLY, 0640);
	CHECK(n >= 0 && fstat(n, &st) == 0 && (st.st_mode & 0777) == 0640);
	close(n);
	n = open("/sys/class/infiniband/weft0/new", O_CREAT | O_WRONLY, 0604);
	CHECK(n >= 0 && fstat(n, &st) == 0 && (st.st_mode & 0777) == 0604);
	close(n);
	n = open(dir, O_TMPFILE | O_WRONLY, 0642);
	CHECK(n >= 0 && fstat(n, &st) == 0 && (st.st_mode & 0777) == 0642);
	close(n);

	/* stat: device nodes below /dev/infiniband, the truth elsewhere */
#define STAT(call, mode) \
	do { \
		memset(&st, 0xa5, sizeof(st)); \
		memset(&st64, 0xa5, sizeof(st64)); \
		memset(&stx, 0xa5, sizeof(stx)); \
		CHECK((call) == 0); \
		CHECK(S_ISCHR(mode) && ((mode) & 07777) == 0666); \
	} while (0)
	STAT(stat(DEV, &st), st.st_mode);
	STAT(lstat(DEV, &st), st.st_mode);
	STAT(stat64(DEV, &st64), st64.st_mode);
	STAT(lstat64(DEV, &st64), st64.st_mode);
	STAT(fstatat(-1, DEV, &st, 0), st.st_mode);
	STAT(fstatat64(-1, DEV, &st64, 0), st64.st_mode);
	STAT(statx(-1, DEV, 0, STATX_BASIC_STATS, &stx), stx.stx_mode);
	STAT(__xstat(1, DEV, &st), st.st_mode);
	STAT(__lxstat(1, DEV, &st), st.st_mode);
	STAT(__xstat64(1, DEV, &st64), st64.st_mode);
	STAT(__lxstat64(1, DEV, &st64), st64.st_mode);
	STAT(__fxstatat(1, -1, DEV, &st, 0), st.st_mode);
	STAT(__fxstatat64(1, -1, DEV, &st64, 0), st64.st_mode);
	CHECK(stat("/dev/infiniband", &st) == 0 && S_ISDIR(st.st_mode));
	CHECK(stat("/dev/infiniband/", &st) == 0 && S_ISDIR(st.st_mode));
	CHECK(stat(FILE_, &st) == 0 && S_ISREG(st.st_mode));
	CHECK(stat("/sys/class/infiniband_verbs", &st) == 0 && S_ISDIR(st.st_mode));
	CHECK(stat("/sys/class/misc/rdma_cm", &st) == 0 && S_ISDIR(st.st_mode));
	errno = 0;
	CHECK(stat("/dev/infiniband/none", &st) == -1 && errno == ENOENT);
	CHECK(lstat(SYS, &st) == 0 && S_ISLNK(st.st_mode));

	/* access */
	CHECK(access(DEV, R_OK | W_OK) == 0);
	CHECK(eaccess(DEV, R_OK) == 0 && euidaccess(DEV, R_OK) == 0);
	CHECK(faccessat(AT_FDCWD, FILE_, R_OK, AT_EACCESS) == 0);
	CHECK(access(SYS "/none", F_OK) == -1);

	/* directories */
	d = opendir("/sys/class/infiniband");
	CHECK(d != NULL);
	for (n = 0; d && readdir(d);)
		n++;
	CHECK(n == 3);
	if (d)
		closedir(d);
#define SCAN(call, list) \
	do { \
		n = (call); \
		CHECK(n == 3); \
		if (n == 3) \
			CHECK(!strcmp(list[2]->d_name, "uverbs0")); \
		while (n > 0) \
			free(list[--n]); \
		free(list); \
	} while (0)
	SCAN(scandir("/dev/infiniband", &list, NULL, alphasort), list);
	SCAN(scandir64("/dev/infiniband", &list64, NULL, alphasort64), list64);
	SCAN(scandirat(-1, "/dev/infiniband", &list, NULL, alphasort), list);
	SCAN(scandirat64(-1, "/dev/infiniband", &list64, NULL, alphasort64), list64);

	/* links */
	memset(b, 0, sizeof(b));
	CHECK(readlink(SYS, b, sizeof(b)) == 18 && !strcmp(b, "../../devices/weft"));
	CHECK(readlinkat(-1, SYS, b, sizeof(b)) == 18);
	CHECK(__readlink_chk(SYS, b, sizeof(b), sizeof(b)) == 18);
	CHECK(__readlinkat_chk(-1, SYS, b, sizeof(b), sizeof(b)) == 18);
	snprintf(want, sizeof(want), "%s/sys/devices/weft", tree);
	CHECK(realpath(SYS, b) && !strcmp(b, want));
	CHECK(__realpath_chk(SYS, b, sizeof(b)) && !strcmp(b, want));
	p = realpath(SYS, NULL);
	CHECK(p && !strcmp(p, want));
	free(p);
	p = canonicalize_file_name(SYS);
	CHECK(p && !strcmp(p, want));
	free(p);

	/* attributes: none, but the file is there */
	CHECK(getxattr(DEV, "user.x", b, sizeof(b)) == -1 && errno != ENOENT);
	CHECK(lgetxattr(DEV, "user.x", b, sizeof(b)) == -1 && errno != ENOENT);

	/* the exported rewriting: size counts the terminator */
	snprintf(want, sizeof(want), "%s%s", tree, DEV);
	CHECK(weft_rewrite(DEV, b, strlen(want) + 1) && !strcmp(b, want));
	CHECK(!weft_rewrite(DEV, b, strlen(want)));
	errno = 77;
	CHECK(weft_rewrite(DEV, b, sizeof(b)) && errno == 77);
}

/* Similar paths are the kernel's. */
static void untouched(void)
{
	static const char *const paths[] = {
		"", "/", "/d", "/s", "/dev", "/dev/", "/dev/i", "/dev/infini", "/dev/infinibandX",
		"/dev/infiniban/uverbs0", "/sys", "/sys/c", "/sys/class", "/sys/class/infiniban",
		"/sys/class/infinibandx/weft0", "/sys/class/infiniband_verbsx", "/sys/class/misc",
		"/sys/class/misc/rdma_cmx", "dev/infiniband/uverbs0", "./dev/infiniband",
		"//dev/infiniband", "/tmp/dev/infiniband", "/dex/infiniband", "/sys//class/infiniband",
	};
	char b[PATH_MAX];
	struct stat st;
	const char *volatile null = NULL;

	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
		CHECK(!weft_rewrite(paths[i], b, sizeof(b)));
	}
	CHECK(stat("/dev/null", &st) == 0 && S_ISCHR(st.st_mode));
	CHECK(stat("/sys", &st) == 0 && S_ISDIR(st.st_mode));
	errno = 0;
	CHECK(access(null, F_OK) == -1 && errno == EFAULT);
	CHECK(!weft_rewrite(null, b, sizeof(b)));
}

static char hook_name[64];
static int hook_flags, hook_answer;

static int hook(const char *name, int flags)
{
	snprintf(hook_name, sizeof(hook_name), "%s", name);
	hook_flags = flags;
	errno = ENXIO;
	return hook_answer;
}

static void devices(void)
{
	int fd;

	weft_device_open = hook;
	hook_answer = 1234;
	CHECK(open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC) == 1234);
	CHECK(!strcmp(hook_name, "rdma_cm") && hook_flags == (O_RDWR | O_CLOEXEC));
	CHECK(openat(-1, "/dev/infiniband//umad0", O_RDWR) == 1234 && !strcmp(hook_name, "umad0"));
	CHECK(open64(DEV, O_RDONLY) == 1234 && !strcmp(hook_name, "uverbs0"));
	CHECK(__open_2(DEV, O_RDONLY) == 1234);
	hook_answer = -1;
	CHECK(open("/dev/infiniband/rdma_cm", O_RDWR) == -1 && errno == ENXIO);
	hook_answer = WEFT_NOT_MINE;
	fd = open(DEV, O_RDWR);
	CHECK(fd >= 0);
	close(fd);
	hook_name[0] = '\0';
	hook_answer = 1234;
	fd = open("/dev/infiniband", O_RDONLY);
	CHECK(fd >= 0 && fd != 1234);
	close(fd);
	fd = open(FILE_, O_RDONLY);
	CHECK(fd >= 0 && fd != 1234);
	close(fd);
	CHECK(hook_name[0] == '\0');
	weft_device_open = NULL;
}

/* No tree: the host's own paths, whether there are any or not. */
static void without_tree(const char *dir)
{
	char b[PATH_MAX];
	struct stat st;
	int real;

	CHECK(dir ? weft_dir() && !strcmp(weft_dir(), dir) : !weft_dir() && !weft_tree());
	CHECK(!weft_rewrite(DEV, b, sizeof(b)));
	real = (int)faccessat(AT_FDCWD, "/proc/self/root/dev/infiniband/uverbs0", F_OK, 0);
	CHECK(stat(DEV, &st) == real && early == real);
	weft_device_open = hook;
	hook_answer = 1234;
	CHECK((open(DEV, O_RDONLY) == 1234) == (dir != NULL));
	weft_device_open = NULL;
}

static void put(const char *dir, const char *path, const char *text)
{
	char b[PATH_MAX];
	FILE *f;

	snprintf(b, sizeof(b), "%s/tree%s", dir, path);
	f = fopen(b, "w");
	CHECK(f && fputs(text, f) >= 0 && fchmod(fileno(f), 0666) == 0);
	if (f)
		fclose(f);
}

static void folder(const char *dir, const char *path)
{
	char b[PATH_MAX];

	snprintf(b, sizeof(b), "%s%s", dir, path);
	CHECK(mkdir(b, 0755) == 0);
}

static const char *self;

static void run(const char *mode, const char *dir)
{
	int status;
	pid_t pid;

	if (dir)
		setenv("WEFT_DIR", dir, 1);
	else
		unsetenv("WEFT_DIR");
	pid = fork();
	if (pid == 0) {
		execl(self, "paths_test", mode, dir, (char *)NULL);
		_exit(127);
	}
	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
}

int main(int argc, char **argv)
{
	if (argc > 1) {
		const char *dir = argv[2];

		if (!strcmp(argv[1], "tree")) {
			char b[PATH_MAX];

			/* The environment may change later; trailing slashes do not count. */
			unsetenv("WEFT_DIR");
			snprintf(b, sizeof(b), "%.*s", (int)strcspn(dir, "\n"), dir);
			while (b[strlen(b) - 1] == '/')
				b[strlen(b) - 1] = '\0';
			with_tree(b);
			devices();
		} else {
			without_tree(!strcmp(argv[1], "none") ? NULL : dir);
		}
		untouched();
		return failures != 0;
	}
	self = argv[0];

	char dir[] = "/tmp/paths_test.XXXXXX", b[PATH_MAX], longest[2000];

	CHECK(mkdtemp(dir) != NULL);
	static const char *const dirs[] = {
		"/tree", "/tree/dev", "/tree/dev/infiniband", "/tree/sys", "/tree/sys/class",
		"/tree/sys/class/infiniband", "/tree/sys/class/infiniband_verbs", "/tree/sys/class/misc",
		"/tree/sys/class/misc/rdma_cm", "/tree/sys/devices", "/tree/sys/devices/weft", "/tree/sys/devices/weft/gid_attrs",
		"/tree/sys/devices/weft/gid_attrs/types", "/empty",
	};
	for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++)
		folder(dir, dirs[i]);
	put(dir, DEV, "");
	put(dir, "/sys/devices/weft/node_guid", TEXT);
	put(dir, "/sys/devices/weft/empty", "");
	put(dir, "/sys/devices/weft/gid_attrs/types/0", TEXT);
	put(dir, "/sys/devices/weft/gid_attrs/types/1", "");
	snprintf(b, sizeof(b), "%s/tree%s", dir, SYS);
	CHECK(symlink("../../devices/weft", b) == 0);

	run("tree", dir);
	snprintf(b, sizeof(b), "%s//", dir);
	run("tree", b);
	run("none", NULL);
	snprintf(b, sizeof(b), "%s/empty", dir);
	run("notree", b);
	/* Not absolute, empty, too long: as good as not set. */
	setenv("WEFT_DIR", "", 1);
	run("none", NULL);
	memset(longest, 'a', sizeof(longest) - 1);
	longest[0] = '/';
	longest[sizeof(longest) - 1] = '\0';
	static const char *const useless[] = { "", "relative/dir" };
	for (size_t i = 0; i <= sizeof(useless) / sizeof(useless[0]); i++) {
		int status;
		pid_t pid;

		setenv("WEFT_DIR", i < 2 ? useless[i] : longest, 1);
		pid = fork();
		if (pid == 0) {
			execl(self, "paths_test", "none", (char *)NULL);
			_exit(127);
		}
		CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
	}
	snprintf(b, sizeof(b), "rm -rf '%s'", dir);
	CHECK(system(b) == 0);
	return finish("paths_test");
}

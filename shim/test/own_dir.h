/* SPDX-License-Identifier: Apache-2.0 */
/* A node's directory for the time of a test. */
#ifndef WEFT_TEST_OWN_DIR_H
#define WEFT_TEST_OWN_DIR_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/*
 * Runs the program again with a new directory as WEFT_DIR, which fill may put
 * something into, and with a library preloaded unless that is NULL; removes the
 * directory and exits as that run did. In that run it returns the directory.
 * Nothing else may run yet.
 */
static inline const char *own_dir(char **argv, void (*fill)(const char *dir), const char *preload)
{
	const char *tmp = getenv("TMPDIR");
	char dir[64], cmd[80];
	int status = 1;
	pid_t pid;

	if (getenv("WEFT_TEST_DIR"))
		return getenv("WEFT_TEST_DIR");
	if (!tmp || strlen(tmp) > 32) /* sockets in it have short names */
		tmp = "/tmp";
	snprintf(dir, sizeof(dir), "%s/weft-test-XXXXXX", tmp);
	if (!mkdtemp(dir)) {
		perror(dir);
		exit(1);
	}
	if (fill)
		fill(dir);
	pid = fork();
	if (pid == 0) {
		setenv("WEFT_DIR", dir, 1);
		setenv("WEFT_TEST_DIR", dir, 1);
		if (preload)
			setenv("LD_PRELOAD", preload, 1);
		execv("/proc/self/exe", argv);
		perror("exec");
		_exit(1);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		perror("the test itself");
	snprintf(cmd, sizeof(cmd), "rm -rf %s", dir);
	if (system(cmd) != 0 || !WIFEXITED(status))
		exit(1);
	exit(WEXITSTATUS(status));
}

#endif

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds and runs the stand-alone tests of the library's parts: plain, with the
# sanitizers, and under valgrind where it is installed. OUT keeps the binaries.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
shim=$(dirname "$here")
out=${OUT:-$(mktemp -d)}
[ -n "${OUT:-}" ] || trap 'rm -rf "$out"' EXIT
cc=${CC:-gcc}
flags="-std=gnu11 -g -Wall -Wextra -Werror -pthread"

for t in paths arena; do
	[ -f "$here/${t}_test.c" ] || continue
	$cc $flags -O2 "$here/${t}_test.c" "$shim/$t.c" -o "$out/${t}_test"
	"$out/${t}_test"
done

# NULL paths are passed on purpose.
$cc $flags -O1 -fsanitize=address,undefined -fno-sanitize=nonnull-attribute \
	-fno-sanitize-recover=all "$here/paths_test.c" "$shim/paths.c" -o "$out/paths_test_asan"
"$out/paths_test_asan"
if command -v valgrind >/dev/null; then
	valgrind -q --suppressions="$here/valgrind.supp" --trace-children=yes --error-exitcode=9 "$out/paths_test"
fi

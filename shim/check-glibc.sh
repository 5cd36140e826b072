#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Proves that a library loads wherever there is glibc 2.28 or later: it imports no
# symbol of a later version, and needs no library but the C library's own. A library
# that was built with SYSROOT=/ is for the machine's glibc: the version is printed.
#
# usage: check-glibc.sh LIBRARY
#        check-glibc.sh --needs LIBRARY    prints the oldest glibc that it needs
set -eu

needs=
[ "$1" != --needs ] || { needs=yes; shift; }
lib=$1
oldest=2.28

for n in $(readelf -d "$lib" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p'); do
	case $n in
	libc.so.6|libdl.so.2|libpthread.so.0|ld-linux*) ;;
	*)
		echo "check glibc: $lib needs $n" >&2
		exit 1
		;;
	esac
done
# A need of the loader itself, which no symbol shows: such relocations need glibc 2.36.
if readelf -V "$lib" | grep -q 'Name: GLIBC_ABI_DT_RELR' && [ "${SYSROOT:-}" != / ]; then
	echo "check glibc: $lib has relocations in the format of glibc 2.36 (DT_RELR), and $oldest is the newest allowed" >&2
	exit 1
fi
imports=$(nm -D --undefined-only --with-symbol-versions "$lib" |
	sed -n 's/^ *[UwV] \(.*\)@GLIBC_\(2[0-9.]*\)$/\2 \1/p' | sort -V)
newest=$(echo "$imports" | tail -1)
[ -z "$needs" ] || { echo "${newest%% *}"; exit; }
if [ "$(printf '%s\n%s\n' "${newest%% *}" $oldest | sort -V | tail -1)" = $oldest ]; then
	echo "check glibc: $lib needs glibc ${newest%% *}, and $oldest is allowed"
elif [ "${SYSROOT:-}" = / ]; then
	echo "check glibc: $lib was built for this machine's C library: it needs glibc ${newest%% *}" >&2
else
	echo "check glibc: $lib imports ${newest#* } of glibc ${newest%% *}, and $oldest is the newest allowed" >&2
	exit 1
fi

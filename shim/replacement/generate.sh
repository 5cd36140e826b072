#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Writes what the library that stands in the place of libibverbs needs beside its
# sources, from the symbols of all versions of libibverbs (shim/replacement/symbols):
#
#   generate.sh map   a version script: each function of programs in the node where
#                     they look for it, and a node for each private interface
#   generate.sh stubs C: the private symbols, which providers and tools are linked
#                     with but never call on a device of Weft
#   generate.sh check LIBRARY
#                     whether it has every symbol where a program looks for it
#
# usage: generate.sh map|stubs|check LIBRARY
set -eu

what=${1:-}
list=$(dirname "$0")/symbols

# "NODE NAME" of programs. A second version of a function, for programs older than
# 2006, is left out.
functions() {
	awk '$1 == "public" { node[$3] = $2 } END { for (s in node) print node[s], s }' "$list" | sort -k1,1V -k2,2
}

numbers=$(awk '$1 == "private" && !seen[$2]++ { print $2 }' "$list")

case $what in
map)
	{
		functions
		for n in $numbers; do
			echo "IBVERBS_PRIVATE_$n verbs_register_driver_$n"
		done
	} | awk '
		function finish() { if (before == "") print "\tlocal:\n\t\tweft_private_*;"; print "}" before ";" }
		$1 != node { if (node != "") { finish(); before = " " node }; node = $1; print node " {\n\tglobal:" }
		{ print "\t\t" $2 ";" }
		END { finish() }'
	;;
stubs)
	cat <<'END'
/* Written by shim/replacement/generate.sh. Weak: what the sources define takes precedence. */
#include <errno.h>
#define STUB(name) __attribute__((visibility("default"), weak)) long name(void); \
	long name(void) { errno = EOPNOTSUPP; return 0; }
#define ALIAS(own, name, node) __asm__(".symver " #own "," #name "@" #node)
int ibv_query_gid_type(void *c, unsigned char port, unsigned int index, int *type);
__attribute__((visibility("default"), used))
int weft_private_gid_type(void *c, unsigned char port, unsigned int index, int *type);
int weft_private_gid_type(void *c, unsigned char port, unsigned int index, int *type)
{
	return ibv_query_gid_type(c, port, index, type);
}
__attribute__((visibility("default"), used)) long weft_private_stub(void);
long weft_private_stub(void)
{
	errno = EOPNOTSUPP;
	return 0;
}
/* In the place of the only variable, a flag of providers. */
__attribute__((visibility("default"), aligned(16), used)) char weft_private_data[64];
END
	for n in $numbers; do
		echo "STUB(verbs_register_driver_$n)"
	done
	awk '
	$1 != "private" || $3 ~ /^verbs_register_driver_/ { next }
	{ own = "weft_private_stub" }
	$3 == "ibv_query_gid_type" { own = "weft_private_gid_type" }
	$3 == "verbs_allow_disassociate_destroy" { own = "weft_private_data" }
	{ print "ALIAS(" own ", " $3 ", IBVERBS_PRIVATE_" $2 ");" }' "$list"
	;;
check)
	lib=$2
	has=$(nm -D --defined-only --with-symbol-versions "$lib" | awk '{ sub("@@", "@", $3); print $3 }')
	want=$(functions | awk '{ print $2 "@" $1 }'
		awk '$1 == "private" { print $3 "@IBVERBS_PRIVATE_" $2 }' "$list")
	bad=0
	for s in $(echo "$want" | grep -vxF "$has" || true); do
		echo "check replacement: $lib lacks $s" >&2
		bad=1
	done
	[ "$(readelf -d "$lib" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')" = libibverbs.so.1 ] || {
		echo "check replacement: $lib is not called libibverbs.so.1" >&2
		bad=1
	}
	releases=$(sed -n 's/^# rdma-core: //p' "$list")
	[ $bad = 0 ] && echo "check replacement: $(echo "$want" | wc -l) symbols of $releases are in place"
	exit $bad
	;;
*)
	echo "usage: generate.sh map|stubs|check LIBRARY" >&2
	exit 2
	;;
esac

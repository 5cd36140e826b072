#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Writes what the library that stands in the place of libibverbs needs beside its
# sources, from the installed libibverbs and from the list of symbols that older
# and newer versions have (shim/replacement/symbols):
#
#   generate.sh map   a version script: each symbol in the node where libibverbs has it
#   generate.sh stubs C: the private symbols, which providers and tools are linked
#                     with but never call on a device of Weft
#   generate.sh check LIBRARY
#                     whether it has every symbol where a program looks for it
#
# usage: generate.sh map|stubs|check LIBRARY [libibverbs.so.1]
set -eu

what=$1
list=$(dirname "$0")/symbols
[ "$what" != check ] || { lib=$2; shift; }
real=${2:-$("$(dirname "$0")"/../../scripts/libibverbs)}

# type name node, by the order of the nodes. A second version of a function, for
# programs older than 2006, is left out; so are private symbols of versions other
# than the installed one.
symbols() {
	nm -D --defined-only --with-symbol-versions "$1" | awk '
	$2 == "A" { next }
	split($3, part, "@@") == 2 { print $2, part[1], part[2]; seen[part[1]] = 1; next }
	split($3, part, "@") == 2 { type[part[1]] = $2; node[part[1]] = part[2] }
	END { for (s in node) if (!(s in seen) && node[s] !~ /PRIVATE/) print type[s], s, node[s] }'
}
# The public symbols of the list that the installed library lacks.
newer() {
	awk -v have=" $(symbols "$real" | awk '{ printf "%s ", $2 }')" '
		/^IBVERBS_/ && !index(have, " " $2 " ") { print "T", $2, $1 }' "$list"
}
symbols=$({ symbols "$real"; newer; } | sort -k3,3V -k2,2)
# The numbers of private nodes that the installed library does not have.
others=$(awk -v node=" $(echo "$symbols" | awk '$3 ~ /PRIVATE/ { print $3; exit }') " '
	$1 == "abi" && !index(node, "_" $2 " ") { print $2 }' "$list")

case $what in
map)
	{
		echo "$symbols"
		for n in $others; do
			echo "T verbs_register_driver_$n IBVERBS_PRIVATE_$n"
		done
	} | awk '
		function finish() { if (before == "") print "\tlocal:\n\t\tweft_private_*;"; print "}" before ";" }
		$3 != node { if (node != "") { finish(); before = " " node }; node = $3; print node " {\n\tglobal:" }
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
END
	echo "$symbols" | awk '$3 ~ /PRIVATE/ && ($1 == "T" || $1 == "W") && $2 != "ibv_query_gid_type" {
		print "STUB(" $2 ")" }'
	# Variables: a flag of drivers.
	echo "$symbols" | awk '$3 ~ /PRIVATE/ && $1 ~ /[BD]/ {
		print "__attribute__((visibility(\"default\"), weak, aligned(16))) char " $2 "[64];" }'
	# The same symbols in the nodes of other versions.
	echo '__attribute__((visibility("default"), aligned(16), used)) char weft_private_data[64];'
	for n in $others; do
		echo "STUB(verbs_register_driver_$n)"
		awk -v n="$n" '
		$2 == "ibv_query_gid_type" { own = "weft_private_gid_type" }
		$2 != "ibv_query_gid_type" { own = $1 == "privatedata" ? "weft_private_data" : "weft_private_stub" }
		/^private/ { print "ALIAS(" own ", " $2 ", IBVERBS_PRIVATE_" n ");" }' "$list"
	done
	;;
check)
	has=$(nm -D --defined-only --with-symbol-versions "$lib" | awk '{ sub("@@", "@", $3); print $3 }')
	want=$(echo "$symbols" | awk '{ print $2 "@" $3 }'
		for n in $others; do
			awk -v n="$n" '/^private/ { print $2 "@IBVERBS_PRIVATE_" n }' "$list"
		done)
	missing=$(echo "$want" | grep -vxF "$has" || true)
	bad=0
	for s in $missing; do
		echo "check replacement: $lib lacks $s" >&2
		bad=1
	done
	[ "$(readelf -d "$lib" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')" = libibverbs.so.1 ] || {
		echo "check replacement: $lib is not called libibverbs.so.1" >&2
		bad=1
	}
	[ $bad = 0 ] && echo "check replacement: $(echo "$want" | wc -l) symbols of $real and other versions are in place"
	exit $bad
	;;
*)
	echo "usage: generate.sh map|stubs|check LIBRARY [libibverbs.so.1]" >&2
	exit 2
	;;
esac

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Writes, from the installed libibverbs, what the library that stands in its
# place needs beside its sources:
#
#   generate.sh map   a version script: each symbol in the node where the installed library has it
#   generate.sh stubs C: the private symbols, which providers and tools are linked
#                     with but never call on a device of Weft
#   generate.sh check LIBRARY
#                     whether it has every symbol where a program looks for it
#
# usage: generate.sh map|stubs|check LIBRARY [libibverbs.so.1]
set -eu

what=$1
[ "$what" != check ] || { lib=$2; shift; }
real=${2:-$(ldconfig -p | awk '/libibverbs\.so\.1 / { print $NF; exit }')}
[ -n "$real" ] && [ -e "$real" ] || {
	echo "generate: libibverbs.so.1 not found. fix: apt-get install libibverbs1" >&2
	exit 1
}
# type name node, by the order of the nodes. A second version of a function, for
# programs older than 2006, is left out.
symbols() {
	nm -D --defined-only --with-symbol-versions "$1" | awk '
	$2 == "A" { next }
	split($3, part, "@@") == 2 { print $2, part[1], part[2]; seen[part[1]] = 1; next }
	split($3, part, "@") == 2 { type[part[1]] = $2; node[part[1]] = part[2] }
	END { for (s in node) if (!(s in seen)) print type[s], s, node[s] }' | sort -k3,3V -k2,2
}
symbols=$(symbols "$real")

case $what in
map)
	echo "$symbols" | awk '
		$3 != node { if (node != "") print "}" before ";"; before = node == "" ? "" : " " node; node = $3; print node " {\n\tglobal:" }
		{ print "\t\t" $2 ";" }
		END { print "}" before ";" }'
	;;
stubs)
	echo '/* Written by shim/replacement/generate.sh. Weak: what the sources define is theirs. */'
	echo '#include <errno.h>'
	echo '#define STUB(name) __attribute__((visibility("default"), weak)) long name(void); long name(void) { errno = EOPNOTSUPP; return 0; }'
	echo "$symbols" | awk '$3 ~ /PRIVATE/ && ($1 == "T" || $1 == "W") { print "STUB(" $2 ")" }'
	# Variables: a flag of drivers.
	echo "$symbols" | awk '$3 ~ /PRIVATE/ && $1 ~ /[BD]/ { print "__attribute__((visibility(\"default\"), weak, aligned(16))) char " $2 "[64];" }'
	;;
check)
	has=$(symbols "$lib")
	bad=0
	for s in $(echo "$symbols" | awk '{ print $2 "@@" $3 }'); do
		echo "$has" | awk '{ print $2 "@@" $3 }' | grep -qxF "$s" || {
			echo "check replacement: $lib lacks $s of $real" >&2
			bad=1
		}
	done
	[ "$(readelf -d "$lib" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')" = libibverbs.so.1 ] || {
		echo "check replacement: $lib is not called libibverbs.so.1" >&2
		bad=1
	}
	[ $bad = 0 ] && echo "check replacement: $(echo "$symbols" | wc -l) symbols of $real are in their places"
	exit $bad
	;;
*)
	echo "usage: generate.sh map|stubs|check LIBRARY [libibverbs.so.1]" >&2
	exit 2
	;;
esac

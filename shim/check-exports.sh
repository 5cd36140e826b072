#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Proves that the preload library defines every public function of libibverbs, of
# any version, that takes an object: one that is missing would run in the real
# library on objects it does not know. Also proves that the library carries no
# version nodes.
#
# usage: check-exports.sh libweft-verbs.so
set -eu

lib=$1
list=$(dirname "$0")/replacement/symbols

# Pure helpers, left to the real library: they look at values only. The driver
# registration is between the real library and its providers.
pure='ibv_wc_status_str|ibv_event_type_str|ibv_node_type_str|ibv_port_state_str
|ibv_rate_to_mult|mult_to_ibv_rate|ibv_rate_to_mbps|mbps_to_ibv_rate
|ibv_copy_ah_attr_from_kern|ibv_copy_path_rec_from_kern|ibv_copy_path_rec_to_kern|ibv_copy_qp_attr_from_kern
|ibv_dontfork_range|ibv_dofork_range
|ibv_get_sysfs_path|ibv_read_sysfs_file|ibv_register_driver'
pure=$(echo "$pure" | tr -d '\n')

want=$(awk '$1 == "public" { print $3 }' "$list" | sort -u | grep -Evx "$pure")
# Private, yet called by ibv_devinfo.
want="$want
ibv_query_gid_type"
have=$(nm -D --defined-only "$lib" | awk '{ print $3 }' | sort -u)

bad=0
for f in $want; do
	echo "$have" | grep -qx "$f" || {
		echo "check exports: $lib lacks $f" >&2
		bad=1
	}
done
if nm -D --defined-only "$lib" | grep -q '@'; then
	echo "check exports: $lib has versioned symbols; they would not satisfy other versions" >&2
	bad=1
fi
[ $bad = 0 ] && echo "check exports: $(echo "$want" | wc -l) functions of libibverbs are defined"
exit $bad

#!/bin/bash
# Fuzzes targets one by one from compiled binaries, and prints for each its row of the README's table:
#
#   run.sh MINUTES PACKAGE:TARGET…       WORKERS=1 (also of processors), CACHE=.cache/fuzz
#
# What a run finds interesting stays in CACHE, so that the next one goes on from there. A target that fails ends the script; its input lies in
# the package's testdata/fuzz.
set -euo pipefail

minutes=${1:?minutes}
shift
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
cache=${CACHE:-$root/.cache/fuzz}
GO=${GO:-go}
TIMEFORMAT='%U %S'

for one in "$@"; do
	package=${one%%:*} target=${one##*:}
	dir=$cache/$package binary=$cache/$package/fuzz.test
	mkdir -p "$dir"
	(cd "$root" && "$GO" test -c -fuzz=Fuzz -o "$binary" "./$package")

	# Until Go 1.27 a run can end as "context deadline exceeded" when its time is up (go.dev/issue/75804).
	cd "$root/$package"
	{ time "$binary" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "${minutes}m" -test.fuzzminimizetime 5s -test.parallel "${WORKERS:-1}" \
		-test.fuzzcachedir "$dir" >"$dir/log" 2>&1 || failed=$?; } 2>"$dir/time"
	if [ "${failed:-0}" != 0 ] && { grep -q 'Failing input' "$dir/log" || ! grep -q 'context deadline exceeded' "$dir/log"; }; then
		cat "$dir/log" >&2
		exit 1
	fi
	failed=0

	last=$(grep -o 'execs: [0-9]*.*total: [0-9]*' "$dir/log" | tail -1)
	read -r executions _ kept < <(sed -E 's/execs: ([0-9]+).*interesting: ([0-9]+) \(total: ([0-9]+)/\1 \2 \3/' <<<"$last")
	seconds=$(awk '{ printf "%.0f", $1 + $2 }' "$dir/time")
	reached=$(awk -F' *[|] *' -v p="$package" -v t="$target" '$2 == p && $3 == t { print $4; exit }' "$here/README.md")
	echo "| $package | $target | ${reached:-–} | $minutes | $seconds | $(sed ':a;s/\B[0-9]\{3\}\>/,&/;ta' <<<"$executions") | $kept |"
done

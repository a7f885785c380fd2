#!/bin/sh
# Builds a real kube-apiserver for tests, and fetches the definitions of the objects that the chart has beyond
# Kubernetes's own:
#
#   .cache/kubernetes/1.34.1/kube-apiserver      (below the repository's root; 6 minutes of one core, 100 MB)
#   .cache/kubernetes/1.34.1/crds/*.yaml
#
# Everything comes as Go modules at the versions below and in go.mod, checked against go.sum and the sums here.
# Running this again does nothing when all is there.
set -eu

version=1.34.1
keda=github.com/kedacore/keda/v2@v2.17.2
keda_sum=h1:xlrcK5TKABJF9PebK79sgL07s/csGjL3H4m72OkZXxk=
operator=github.com/prometheus-operator/prometheus-operator@v0.85.0
operator_sum=h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
dir=$root/.cache/kubernetes/$version
GO=${GO:-go}

# module NAME SUM prints where a module's files lie.
module() {
	said=$("$GO" mod download -json "$1")
	case $said in
	*"\"Sum\": \"$2\""*) ;;
	*) echo "build.sh: $1 has not the sum $2" >&2; exit 1 ;;
	esac
	printf '%s\n' "$said" | sed -n 's/^.*"Dir": "\(.*\)",$/\1/p'
}

mkdir -p "$dir/crds"
cd "$here"
if [ ! -s "$dir/crds/scaledobjects.yaml" ]; then
	files=$(module "$keda" "$keda_sum")
	install -m 644 "$files/config/crd/bases/keda.sh_scaledobjects.yaml" "$dir/crds/scaledobjects.yaml"
fi
for kind in servicemonitors prometheusrules; do
	if [ ! -s "$dir/crds/$kind.yaml" ]; then
		files=$(module "$operator" "$operator_sum")
		install -m 644 "$files/example/prometheus-operator-crd/monitoring.coreos.com_$kind.yaml" "$dir/crds/$kind.yaml"
	fi
done
if [ ! -x "$dir/kube-apiserver" ]; then
	name=k8s.io/component-base/version
	"$GO" build -ldflags "-s -w -X $name.gitVersion=v$version -X $name.gitMajor=1 -X $name.gitMinor=34" -o "$dir/kube-apiserver.new" k8s.io/kubernetes/cmd/kube-apiserver
	mv -f "$dir/kube-apiserver.new" "$dir/kube-apiserver"
fi
echo "kube-apiserver: $version is in place"

#!/usr/bin/env bash
# Builds kube-apiserver and kube-scheduler 1.20.2 for the tests here, from Debian's source package with Debian's Go.
#
#   bash tests/kube/build-apiserver.sh
#
# Once: about six minutes on two cores, 3 GB of temporary space, 150 MB in the end. What is there already is not built
# again. Where they go: $GPUYARD_KUBE_BIN, by default ~/.cache/gpuyard-test/kube-1.20.2.
set -euo pipefail

version=1.20.2
out=${GPUYARD_KUBE_BIN:-${XDG_CACHE_HOME:-$HOME/.cache}/gpuyard-test/kube-$version}
packages=(golang-1.19-go golang-github-modern-go-reflect2-dev rsync jq make)
command -v etcd >/dev/null || packages+=(etcd-server) # the tests need it beside the server

say() { echo "build-apiserver: $*" >&2; }
give_up() { say "$*"; exit 1; }

missing=()
for name in kube-apiserver kube-scheduler; do
    [ -x "$out/$name" ] || missing+=("$name")
done
if [ "${#missing[@]}" = 0 ]; then
    say "nothing to do: $out has kube-apiserver and kube-scheduler"
    exit 0
fi
command -v apt-get >/dev/null || give_up "there is no apt-get; on a Debian 12, run this script and copy $out from there"

work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT

# -- what building needs
wanted=()
for package in "${packages[@]}"; do
    dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null | grep -q ' installed$' || wanted+=("$package")
done
if [ "${#wanted[@]}" -gt 0 ]; then
    [ "$(id -u)" = 0 ] || give_up "it needs ${wanted[*]}; run as root: apt-get install --no-install-recommends ${wanted[*]}"
    say "installing ${wanted[*]}"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get -qq update && apt-get -qq install --yes --no-install-recommends "${wanted[@]}"; } >"$work/log" 2>&1 ||
        { tail -n 5 "$work/log" >&2; give_up "could not install ${wanted[*]}; Debian 12 has them"; }
fi

# -- the source, from where this machine gets its packages, without a change to how it does
mkdir -p "$work/apt/parts" "$work/apt/lists/partial"
for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
    [ -f "$list" ] || continue
    sed -E 's/^Types:.*/Types: deb-src/; s/^deb(-src)? /deb-src /' "$list" >"$work/apt/parts/${list##*/}"
done
apt=(-qq -o "Dir::Etc::SourceList=/dev/null" -o "Dir::Etc::SourceParts=$work/apt/parts" -o "Dir::State::Lists=$work/apt/lists"
    -o "Dir::Cache::pkgcache=" -o "Dir::Cache::srcpkgcache=" -o "APT::Sandbox::User=")
say "fetching the source"
cd "$work"
{ apt-get "${apt[@]}" update && apt-get "${apt[@]}" --download-only source kubernetes; } >"$work/log" 2>&1 ||
    { tail -n 5 "$work/log" >&2; give_up "could not fetch Debian's source package of kubernetes"; }
tar xzf kubernetes_*.orig.tar.gz
[ -d "kubernetes-$version" ] || give_up "wanted kubernetes $version, as Debian 12 has it, but found $(echo kubernetes-*)"
cd "kubernetes-$version"

# The reflect2 in there corrupts memory with a Go from 1.18 on, at the first custom resource: take Debian's, which does not.
reflect2=github.com/modern-go/reflect2
rm -f vendor/$reflect2/*.go vendor/$reflect2/*.s
cp --dereference /usr/share/gocode/src/$reflect2/*.{go,s} vendor/$reflect2/

# -- building; `make`, since it also generates code that a plain `go build` would miss
unset GOFLAGS
export PATH=/usr/lib/go-1.19/bin:$PATH GOPATH=$PWD/.go GOCACHE=$work/cache CGO_ENABLED=0 GOPROXY=off GO111MODULE=off
export KUBE_GIT_VERSION=v$version
mkdir -p .go/src/k8s.io
ln -sfn ../../.. .go/src/k8s.io/kubernetes
say "building ${missing[*]}, which takes some minutes"
make WHAT="$(printf 'cmd/%s ' "${missing[@]}")" >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; give_up "it does not build"; }

# -- into place, each at once: a test that looks meanwhile finds all of a program or nothing
mkdir -p "$out"
for name in "${missing[@]}"; do
    "_output/bin/$name" --version | grep -qx "Kubernetes v$version" || give_up "the $name that was built does not run"
    cp "_output/bin/$name" "$out/.$name.$$"
    mv "$out/.$name.$$" "$out/$name"
done
say "done: $out has ${missing[*]}"

#!/usr/bin/env bash
# Installs what the tests of `make test-system` need beside Python, where this is root and there is apt-get. Without it
# those tests are skipped, and say so.
#
#   bash tests/system-needs.sh [packages]
#
# packages: only what apt-get installs, without the API server of Kubernetes, which takes minutes to build.
set -euo pipefail
here=$(dirname "$0")

declare -A package_of=(
    [tmux]=tmux [zsh]=zsh [systemd-analyze]=systemd [setpriv]=util-linux [useradd]=passwd [promtool]=prometheus
    [chromium]=chromium [gcc]="gcc libc6-dev" [etcd]=etcd-server [kubectl]=kubernetes-client
)
wanted=()
for program in "${!package_of[@]}"; do
    # shellcheck disable=SC2206 # some programs take two packages
    command -v "$program" >/dev/null || wanted+=(${package_of[$program]})
done
if [ "${#wanted[@]}" -gt 0 ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        export DEBIAN_FRONTEND=noninteractive
        { apt-get -qq update && apt-get -qq install --yes --no-install-recommends "${wanted[@]}"; } >/dev/null ||
            echo "could not install ${wanted[*]}; the tests that need them are skipped"
    else
        echo "there is no ${wanted[*]}, which root could install with apt-get; the tests that need them are skipped"
    fi
fi
[ "${1:-}" != packages ] || exit 0
# The API server of Kubernetes is built once on a machine, in about five minutes.
bash "$here/kube/build-apiserver.sh" ||
    echo "could not build the API server of Kubernetes; the tests that need it are skipped"

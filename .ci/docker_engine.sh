#!/bin/sh
# A private Docker Engine without systemd: own data root and socket, no bridge, no firewall rules.
#   docker_engine.sh start FOLDER   installs docker.io where it is missing (as root, Debian), prints the DOCKER_HOST
#   docker_engine.sh stop FOLDER    ends the engine and removes FOLDER
set -eu
action=$1 folder=$2
socket="$folder/docker.sock"

start() {
    if ! command -v dockerd >/dev/null && ! [ -x /usr/sbin/dockerd ]; then
        export DEBIAN_FRONTEND=noninteractive
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends docker.io; } >/dev/null 2>&1
    fi
    mkdir -p "$folder"
    PATH="$PATH:/usr/sbin:/sbin" setsid dockerd --data-root "$folder/data" --exec-root "$folder/exec" \
        --pidfile "$folder/docker.pid" -H "unix://$socket" --bridge=none --iptables=false --ip6tables=false \
        --ip-masq=false --ip-forward=false --storage-driver="${STORAGE_DRIVER:-overlay2}" \
        >"$folder/dockerd.log" 2>&1 </dev/null &
    tries=0
    until [ -S "$socket" ] && DOCKER_HOST="unix://$socket" docker version >/dev/null 2>&1; do
        tries=$((tries + 1))
        if [ "$tries" -gt 200 ]; then
            tail -n 20 "$folder/dockerd.log" >&2
            exit 1
        fi
        sleep 0.1
    done
    echo "unix://$socket"
}

stop() {
    if [ -f "$folder/docker.pid" ]; then
        pid=$(cat "$folder/docker.pid")
        kill "$pid" 2>/dev/null || true
        tries=0
        while kill -0 "$pid" 2>/dev/null && [ "$tries" -lt 150 ]; do
            tries=$((tries + 1))
            sleep 0.1
        done
        kill -9 "$pid" 2>/dev/null || true
    fi
    rm -rf "$folder"
}

"$action"

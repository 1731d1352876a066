#!/bin/bash
# A Docker engine for the test suite, where none runs: docker-engine.sh start | stop
#
# start  prints the engine's address (unix://...) on standard output, everything else on standard error. An engine that
#        already answers at DOCKER_HOST or at the default socket is used as it is, and nothing is started. Idempotent.
# stop   ends the engine that start started, its containers and its mounts; its images stay in the data directory.
#
# TERMLOOM_DOCKER_DIR     data, logs and pid file            (default /var/lib/termloom-docker)
# TERMLOOM_DOCKER_SOCKET  where the engine listens           (default $TERMLOOM_DOCKER_DIR/docker.sock)
# TERMLOOM_DOCKER_OWN     set: start one there, whatever answers elsewhere
#
# Needs root and a Debian-like system for the installation. The engine runs in a private mount namespace, so that its
# mounts vanish with it; crun is the runtime when it works here (half the cost of runc for each sandbox).
set -euo pipefail

dir=${TERMLOOM_DOCKER_DIR:-/var/lib/termloom-docker}
socket=${TERMLOOM_DOCKER_SOCKET:-$dir/docker.sock}
pidfile=$dir/dockerd.pid

say() { echo "docker-engine: $*" >&2; }

answers() { docker --host "$1" version --format '{{.Server.Version}}' >/dev/null 2>&1; }

# A pid file counts only while its process is alive and no zombie: nobody may be there to reap a dead daemon.
alive() {
  local pid state
  pid=$(cat "$1" 2>/dev/null) && [ -n "$pid" ] || return 1
  state=$(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | cut -c1)
  [ -n "$state" ] && [ "$state" != Z ]
}

install_missing() {
  local wanted=()
  command -v dockerd >/dev/null || wanted+=(docker.io)
  command -v docker >/dev/null || wanted+=(docker.io)
  command -v iptables >/dev/null || wanted+=(iptables)
  command -v crun >/dev/null || wanted+=(crun)
  command -v mmdebstrap >/dev/null || wanted+=(mmdebstrap)
  [ ${#wanted[@]} -eq 0 ] && return
  say "installing ${wanted[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq >&2
  apt-get install -y -qq --no-install-recommends "${wanted[@]}" >&2
  # Newer releases keep the client in a package of its own.
  command -v docker >/dev/null || apt-get install -y -qq --no-install-recommends docker-cli >&2
}

# Hybrid cgroups: crun refuses them while the unified tree holds controllers, so the engine does not get to see it.
without_unified='mountpoint -q /sys/fs/cgroup/unified && umount /sys/fs/cgroup/unified; exec "$@"'

private() { unshare --mount sh -c "$without_unified" sh "$@"; }

# crun is tried on a bundle of one static binary, without any engine.
crun_works() {
  local bundle init
  init=$(readlink -f "$(command -v docker-init || command -v tini-static)") || return 1
  bundle=$(mktemp -d)
  mkdir "$bundle/rootfs" "$bundle/state"
  cp "$init" "$bundle/rootfs/init"
  (cd "$bundle" && crun spec && sed -i -e 's/"terminal": true/"terminal": false/' -e 's|"sh"|"/init", "--version"|' config.json)
  private timeout 20 crun --root "$bundle/state" run --bundle "$bundle" "termloom-probe-$$" </dev/null >/dev/null 2>&1
  local verdict=$?
  rm -rf "$bundle"
  return $verdict
}

start() {
  local candidate elsewhere=("${DOCKER_HOST:-}" unix:///var/run/docker.sock)
  [ -z "${TERMLOOM_DOCKER_OWN:-}" ] || elsewhere=()
  for candidate in "${elsewhere[@]}" "unix://$socket"; do
    if [ -n "$candidate" ] && command -v docker >/dev/null && answers "$candidate"; then
      say "using the engine at $candidate"
      echo "$candidate"
      return
    fi
  done
  [ "$(id -u)" = 0 ] || { say "no engine answers, and starting one needs root"; exit 1; }
  install_missing
  mkdir -p "$dir"
  local stale
  for stale in "$pidfile" "$dir/exec/containerd/containerd.pid"; do
    alive "$stale" || rm -f "$stale"
  done
  local runtime=runc
  if crun_works; then runtime=crun; fi
  say "starting dockerd with $runtime, data in $dir"
  setsid unshare --mount sh -c "$without_unified" sh dockerd \
    --host "unix://$socket" --data-root "$dir/data" --exec-root "$dir/exec" --pidfile "$pidfile" \
    --add-runtime "crun=$(command -v crun)" --default-runtime "$runtime" \
    --live-restore --mtu 1400 --log-level warn >>"$dir/log" 2>&1 </dev/null &
  local daemon=$!
  for _ in $(seq 150); do
    if answers "unix://$socket"; then
      echo "unix://$socket"
      return
    fi
    kill -0 "$daemon" 2>/dev/null || break
    sleep 0.2
  done
  say "dockerd did not come up; the end of its log:"
  tail -n 20 "$dir/log" >&2
  exit 1
}

stop() {
  alive "$pidfile" || { say "no engine of ours runs"; rm -f "$pidfile"; return; }
  local pid containers
  pid=$(cat "$pidfile")
  containers=$(docker --host "unix://$socket" ps --quiet 2>/dev/null || true)
  # shellcheck disable=SC2086
  [ -z "$containers" ] || docker --host "unix://$socket" kill $containers >/dev/null 2>&1 || true
  kill -TERM "$pid"
  for _ in $(seq 150); do
    alive "$pidfile" || { say "stopped"; return; }
    sleep 0.2
  done
  say "dockerd did not stop within 30 s, killing it"
  kill -KILL "$pid"
}

case ${1:-} in
  start) start ;;
  stop) stop ;;
  *) echo "usage: $0 start | stop" >&2; exit 2 ;;
esac

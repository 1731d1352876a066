#!/usr/bin/env bash
# Installs what the tests need beyond the product (test packages, a container engine, a NATS server, a browser, base
# environments, an SGLang environment of about 3 GB) and runs them.
# Arguments go to pytest. With CI set, a part that cannot be installed is a failure; else its tests are skipped and named.
# With CI set, up to three tests that failed are run once more, in a process of their own: they kill real servers on a
# machine that others share. One that passes the second time is told, as it has a race to be found.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh all --group test

as_root() { [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; }

missing() {
  if [[ -n ${CI-} ]]; then echo "test: $*" >&2; exit 1; fi
  echo "test: $*; its tests are skipped" >&2
}

need() { # PROGRAM PACKAGES...
  local program=$1
  shift
  if command -v "$program" >/dev/null; then return; fi
  if as_root; then
    echo "test: installing $*"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null ||
      missing "$program could not be installed"
  else
    missing "no $program on the path (Debian: apt-get install $*)"
  fi
}

need nats-server nats-server
need ip iproute2
need chromedriver chromium chromium-driver

if socket=$(scripts/docker-engine.sh start); then export DOCKER_HOST=$socket; else missing "no Docker engine answers and none could be started"; fi

# Minutes on a new machine: here, and not within the time limit of the first test that needs one.
bases='from sandbox.base import SERVICE_PACKAGES; from tests.machine import base_environment as make; make(), make(SERVICE_PACKAGES)'
.venv/bin/python -c "$bases" || missing "the base environments could not be made"

scripts/sglang-cpu.sh setup || missing "no SGLang environment could be made"

few_failed() {
  .venv/bin/python -c 'import json; assert len(json.load(open(".pytest_cache/v/cache/lastfailed"))) <= 3' 2>/dev/null
}

result=0
.venv/bin/python -m pytest "$@" || result=$?
if [[ -z ${CI-} || $result != 1 ]] || ! few_failed; then exit "$result"; fi
echo "test: run once more, with fresh servers; what passes now FAILED ABOVE, and has a race to be found"
exec .venv/bin/python -m pytest "$@" --last-failed

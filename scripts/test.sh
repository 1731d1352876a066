#!/usr/bin/env bash
# Installs what the tests need beyond the product (test packages, a container engine, a NATS server, a browser, an
# SGLang environment of about 3 GB) and runs them.
# Arguments go to pytest. With CI set, a part that cannot be installed is a failure; else its tests are skipped and named.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh all --group test

as_root() { [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; }

missing() {
  if [[ -n ${CI-} ]]; then echo "test: $*" >&2; exit 1; fi
  echo "test: $*; its tests are skipped" >&2
}

if ! command -v nats-server >/dev/null; then
  if as_root; then
    echo "test: installing nats-server"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends nats-server >/dev/null
  else
    missing "no nats-server on the path (Debian: apt-get install nats-server)"
  fi
fi

if ! command -v ip >/dev/null; then
  if as_root; then
    echo "test: installing iproute2"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends iproute2 >/dev/null
  else
    missing "no ip on the path (Debian: apt-get install iproute2)"
  fi
fi

if ! command -v chromedriver >/dev/null; then
  if as_root; then
    echo "test: installing chromium"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null
  else
    missing "no chromedriver on the path (Debian: apt-get install chromium chromium-driver)"
  fi
fi

if [[ -z ${DOCKER_HOST-} ]]; then
  if socket=$(scripts/docker-engine.sh start); then export DOCKER_HOST=$socket; else missing "no Docker engine answers and none could be started"; fi
fi

scripts/sglang-cpu.sh setup

exec .venv/bin/python -m pytest "$@"

#!/usr/bin/env bash
# An environment of its own for the SGLang server on a CPU (.venv-sglang), since SGLang pins other versions than ours.
#   sglang-cpu.sh setup                   install it, if it is not there
#   sglang-cpu.sh serve MODEL PORT [...]  serve a model directory on loopback (more options go to the server)
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${TERMLOOM_SGLANG_VENV:-.venv-sglang}

setup() {
  local want
  want=$venv/.installed-$(cat tools/sglang-cpu/requirements.txt scripts/sglang-cpu.sh | sha256sum | cut -c1-16)
  [[ -e $want ]] && return
  echo "sglang-cpu: installing into $venv (about 3 GB)" >&2
  [[ -x $venv/bin/python ]] || "${PYTHON:-python3}" -m venv "$venv"
  local pip=("$venv/bin/python" -m pip --disable-pip-version-check -qq install)
  # pip complains at length that sglang's own pins are not met: that is the point, and shown only when it fails.
  local said
  said=$({
    "${pip[@]}" 'torch==2.13.0' &&
      "${pip[@]}" --no-deps 'sglang==0.5.23' 'torchvision==0.28.0' &&
      "${pip[@]}" -r tools/sglang-cpu/requirements.txt
  } 2>&1) || { echo "$said" >&2; exit 1; }
  touch "$want"
}

serve() {
  local model=$1 port=$2
  shift 2
  # float32: the server would turn a float32 checkpoint into float16. sleep-on-idle: else an idle server spins a core.
  # max-total-tokens: else the cache takes a share of all memory.
  PYTHONPATH=$PWD/tools/sglang-cpu/shim HF_HUB_OFFLINE=1 SGLANG_USE_CPU_ENGINE=1 exec "$venv/bin/python" -m sglang.launch_server \
    --model-path "$model" --host 127.0.0.1 --port "$port" --device cpu --attention-backend torch_native --dtype float32 \
    --disable-overlap-schedule --sleep-on-idle --max-total-tokens 65536 --max-running-requests 64 --weight-version v0 \
    --enable-metrics --log-level warning "$@"
}

case ${1-} in
  setup) setup ;;
  serve) shift; setup; serve "$@" ;;
  *) echo "usage: $0 setup | serve MODEL PORT [SERVER OPTION ...]" >&2; exit 2 ;;
esac

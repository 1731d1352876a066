#!/usr/bin/env bash
# An environment of its own for the SGLang server on a CPU (.venv-sglang), since SGLang pins other versions than ours.
#   sglang-cpu.sh setup                   install it, if it is not there
#   sglang-cpu.sh serve MODEL PORT [...]  serve a model directory on loopback (more options go to the server)
#   sglang-cpu.sh keep MODEL PORT [...]   the same, and start the server again when it dies
#   sglang-cpu.sh await PORT [PID]        return when the server answers; fail after five minutes, or when PID has ended
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${TERMLOOM_SGLANG_VENV:-.venv-sglang}

setup() {
  local want
  want=$venv/.installed-$(cat tools/sglang-cpu/requirements.txt scripts/sglang-cpu.sh | sha256sum | cut -c1-16)
  [[ -e $want ]] && return
  echo "sglang-cpu: installing into $venv (about 3 GB)" >&2
  scripts/venv.sh "$venv"
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

keep() {
  local server since
  trap 'kill "$server" 2>/dev/null; wait "$server"; exit' TERM INT
  while :; do
    since=$SECONDS
    serve "$@" &
    server=$!
    wait "$server" || true
    ((SECONDS - since > 10)) || { echo "sglang-cpu: the server does not start" >&2; exit 1; }
    echo "sglang-cpu: the server has died and is started again" >&2
  done
}

await() {
  "$venv/bin/python" - "$@" <<'PYTHON'
import os, sys, time, urllib.request

end = time.monotonic() + 300
while time.monotonic() < end:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/model_info", timeout=5).close()
        sys.exit()
    except OSError:
        time.sleep(0.5)
    try:
        sys.argv[2:] and os.kill(int(sys.argv[2]), 0)
    except ProcessLookupError:
        break
sys.exit("sglang-cpu: the server does not answer")
PYTHON
}

case ${1-} in
  setup) setup ;;
  serve) shift; setup; serve "$@" ;;
  keep) shift; setup; keep "$@" ;;
  await) shift; await "$@" ;;
  *) echo "usage: $0 setup | serve MODEL PORT [SERVER OPTION ...] | keep MODEL PORT [SERVER OPTION ...] | await PORT [PID]" >&2; exit 2 ;;
esac

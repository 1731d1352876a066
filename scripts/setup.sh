#!/usr/bin/env bash
# Makes the project's own Python environment in .venv and keeps it current. Usage: setup.sh [EXTRA ...] [--group GROUP ...]
# Does nothing, in a few milliseconds, when the environment already holds what pyproject.toml asks for.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv
extras=() groups=()
while (($#)); do
  case $1 in
    --group) groups+=("$2"); shift 2 ;;
    *) extras+=("$1"); shift ;;
  esac
done

# One stamp for each set of extras that was installed from this pyproject.toml.
hash() { sha256sum | cut -c1-12; }
current=$venv/.installed-$(cat pyproject.toml scripts/setup.sh scripts/venv.sh | hash)
stamp=$current-$(echo "${extras[*]-} / ${groups[*]-}" | hash)
[[ -e $stamp && -x $venv/bin/termloom ]] && exit 0

scripts/venv.sh "$venv"

pip() { "$venv/bin/python" -m pip --disable-pip-version-check -qq "$@"; }
"$venv/bin/python" -c 'import importlib.metadata as m, sys; sys.exit(tuple(map(int, m.version("pip").split(".")[:2])) < (25, 1))' ||
  pip install --upgrade 'pip>=25.1'

spec=.
((${#extras[@]})) && spec=".[$(IFS=,; echo "${extras[*]}")]"
args=(-e "$spec")
for group in ${groups[@]+"${groups[@]}"}; do args+=(--group "$group"); done
echo "setup: installing termloom ${extras[*]-} ${groups[*]-}"
if [[ " ${extras[*]-} " =~ " train "|" all " ]] && ! "$venv/bin/python" -c 'import torch' 2>/dev/null && ! command -v nvidia-smi >/dev/null; then
  pip install 'torch==2.13.0' # the build that needs no GPU where one is offered; a newer one would bring several GB of CUDA
fi
pip install "${args[@]}"
for old in "$venv"/.installed-*; do [[ $old == "$current"-* ]] || rm -f "$old"; done
touch "$stamp"

#!/usr/bin/env bash
# Compares the learner's functions with those of verl and AReaL (and merged adapters with peft's), in an environment of
# its own (.venv-parity, about 3 GB), since they pin other versions than ours. Options go to tools/parity/compare.py.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${TERMLOOM_PARITY_VENV:-.venv-parity}

want=$venv/.installed-$(cat pyproject.toml tools/parity/requirements.txt scripts/parity.sh | sha256sum | cut -c1-16)
if [[ ! -e $want ]]; then
  echo "parity: installing into $venv (about 3 GB)" >&2
  scripts/venv.sh "$venv"
  pip=("$venv/bin/python" -m pip --disable-pip-version-check -qq install)
  # pip complains at length that their own pins are not met: that is the point, and shown only when it fails.
  said=$({
    "${pip[@]}" --upgrade 'pip>=25.1' &&
      "${pip[@]}" 'torch==2.13.0' &&
      "${pip[@]}" -e '.[train]' -r tools/parity/requirements.txt &&
      "${pip[@]}" --no-deps 'verl==0.9.1' 'areal==1.0.4'
  } 2>&1) || { echo "$said" >&2; exit 1; }
  rm -f "$venv"/.installed-*
  touch "$want"
fi
exec "$venv/bin/python" -W ignore tools/parity/compare.py "$@"

#!/usr/bin/env bash
# Makes a Python environment with pip in it, or makes it again where an earlier start was cut off. Usage: venv.sh DIR
# PYTHON names the interpreter (3.11 or newer).
set -euo pipefail
venv=$1 python=${PYTHON:-python3}

"$venv/bin/python" -m pip --version >/dev/null 2>&1 && exit
"$venv/bin/python" -m ensurepip >/dev/null 2>&1 && exit

die() { echo "venv: $*" >&2; exit 1; }

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
  die "needs Python 3.11 or newer; '$python' is $(command -v "$python" >/dev/null && "$python" --version 2>&1 || echo missing). Set PYTHON to one."
echo "venv: making $venv" >&2
rm -rf "$venv"
"$python" -m venv "$venv" >/dev/null 2>&1 && exit

# Debian keeps venv in a package of its own, for each Python.
rm -rf "$venv"
package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
remedy="needs $package: install it with 'apt-get install $package' as root."
if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
  echo "venv: installing $package" >&2
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null || die "$remedy"
  "$python" -m venv "$venv" || die "could not make $venv"
else
  "$python" -m pip --version >/dev/null 2>&1 || die "$remedy"
  PIP_BREAK_SYSTEM_PACKAGES=1 "$python" -m pip install --quiet --user virtualenv && "$python" -m virtualenv --quiet "$venv" || die "$remedy"
fi

# termloom: generates verified terminal tasks, and trains agents on them. `just` lists what there is.

set shell := ["bash", "-euo", "pipefail", "-c"]

[private]
default:
    @just --list --unsorted

# Generate 12 certified terminal tasks into ./tasks
[group('work')]
generate *ARGS:
    @scripts/setup.sh
    @.venv/bin/termloom generate --count 12 --seed 0 --out tasks {{ ARGS }}

# Recompute the certificates of generated tasks
[group('work')]
verify *DIRS='tasks/*/':
    @scripts/setup.sh
    @.venv/bin/termloom verify {{ DIRS }}

# Make a small policy better from nothing (tasks, fine-tuning, PPO, report in ./runs/small), or run any recipe
[group('work')]
train RECIPE='recipes/small-cpu.toml' *ARGS:
    @scripts/train.sh {{ RECIPE }} {{ ARGS }}

# Run the daemon with its dashboard; the other recipes submit to it
[group('work')]
daemon *ARGS:
    @scripts/setup.sh
    @.venv/bin/termloom serve {{ ARGS }}

# Run the command line: just termloom generate --help
[group('work')]
termloom *ARGS:
    @scripts/setup.sh
    @.venv/bin/termloom {{ ARGS }}

# Install what the tests need (engine, servers) and run them all
[group('quality')]
test *ARGS:
    @scripts/test.sh {{ ARGS }}

# Lint, format check, strict types, import contract, spelling, dependencies
[group('quality')]
check:
    @scripts/setup.sh nats train --group test --group lint
    .venv/bin/ruff check .
    .venv/bin/ruff format --check .
    .venv/bin/mypy
    .venv/bin/lint-imports
    .venv/bin/codespell

# Put the code into the house format
[group('quality')]
format:
    @scripts/setup.sh --group lint
    .venv/bin/ruff check --fix .
    .venv/bin/ruff format .

# Measure against floors in the same run
[group('quality')]
bench *ARGS:
    @scripts/setup.sh nats --group test
    .venv/bin/python -m bench {{ ARGS }}

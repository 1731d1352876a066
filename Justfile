# termloom: generates verified terminal tasks, and trains agents on them. `just` lists what there is.

set shell := ["bash", "-euo", "pipefail", "-c"]
set positional-arguments := true

[private]
default:
    @just --list --unsorted

# Generate 12 certified terminal tasks into ./tasks
[group('work')]
generate *ARGS:
    @scripts/setup.sh
    @.venv/bin/termloom generate "$@"

# Recompute the certificates of generated tasks
[group('work')]
verify *DIRS='tasks/*/':
    @scripts/setup.sh
    @.venv/bin/termloom verify {{ DIRS }}

# Trajectories with planted mistakes and real recoveries, from ./tasks into ./trajectories
[group('work')]
synthesize *ARGS:
    @scripts/setup.sh
    @.venv/bin/termloom synthesize "$@"

# Measure a policy or an endpoint on tasks: just evaluate tasks --base-url … --model … --out DIR
[group('work')]
evaluate *ARGS:
    @scripts/setup.sh train
    @.venv/bin/termloom evaluate "$@"

# Make a small policy better from nothing (tasks, fine-tuning, PPO, report in ./runs/small), or run any recipe
[group('work')]
train RECIPE='recipes/small-cpu.toml' *ARGS:
    @scripts/train.sh "$@"

# Run the daemon with its dashboard; the other recipes submit to it
[group('work')]
daemon *ARGS:
    @scripts/setup.sh nats
    @.venv/bin/termloom serve "$@"

# Run the command line: just termloom generate --help
[group('work')]
termloom *ARGS:
    @scripts/setup.sh
    @.venv/bin/termloom "$@"

# Install what the tests need (engine, servers) and run them all
[group('quality')]
test *ARGS:
    @scripts/test.sh "$@"

# Lint, format check, strict types, import contract, spelling
[group('quality')]
check:
    @scripts/setup.sh all --group test --group lint
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

# Compare the learner's functions with verl's, AReaL's and peft's, in an environment of its own (about 3 GB)
[group('quality')]
parity *ARGS:
    @scripts/parity.sh "$@"

# Measure against floors in the same run
[group('quality')]
bench *ARGS:
    @scripts/setup.sh nats train --group test
    .venv/bin/python -m bench "$@"

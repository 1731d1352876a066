"""From the parts of a solved item to its task directory in Harbor's format.

The directory is a function of the parts alone: no clock, host name or path of this machine is in it. Of the
truth it holds what tests, solution and certificate have to say; none of these is ever shown to an agent.
"""

from __future__ import annotations

import re

import msgspec

from generators.messages import Environment, Solved
from runtime.task import FINAL_TESTS, Task, TaskConfig
from sandbox.spec import File

INITIAL_TESTS = "tests/test_initial_state.py"
SOLUTION = "solution/solve.sh"

_AGENT_TIMEOUT_S = 900.0
_VERIFIER_TIMEOUT_S = 600.0
_TEST_SH = """\
#!/bin/bash
# Runs offline, with the image's own python3 and pytest.
mkdir -p /logs/verifier
reward=0
python3 -m pytest -q -p no:cacheprovider --rootdir=/tests --noconftest -c /dev/null /tests/test_outputs.py && reward=1
echo "$reward" > /logs/verifier/reward.txt
"""


def directory_name(solved: Solved) -> str:
    """`sort-the-orders-7-00012`: readable, and unique within all runs of all seeds."""
    words = re.findall(r"[a-z0-9]+", solved.examined.draft.title.lower())
    slug = "-".join(words)[:48].rstrip("-")
    return f"{slug or 'task'}-{solved.item}"


def assemble(solved: Solved, *, seed: int) -> Task:
    """The task directory of a solved item, without its certificate."""
    examined = solved.examined
    environment = examined.environment
    files = (
        File(path="environment/Dockerfile", data=environment.dockerfile.encode()),
        *(File(path=f"environment/{file.path}", data=file.data, mode=file.mode) for file in environment.files),
        File(path="tests/test.sh", data=_TEST_SH.encode(), mode=0o755),
        File(path=FINAL_TESTS, data=examined.final_tests.encode()),
        File(path=INITIAL_TESTS, data=environment.initial_tests.encode()),
        File(path=SOLUTION, data=solve_script(solved.reference.commands), mode=0o755),
    )
    return Task(
        config=TaskConfig.model_validate(_config(solved, seed)),
        instruction=examined.draft.instruction.rstrip("\n") + "\n",
        files=tuple(sorted(files, key=lambda file: file.path)),
    )


def solve_script(commands: tuple[str, ...]) -> bytes:
    """The reference as one script: the same commands in the same shell, one after the other."""
    return ("#!/bin/bash\n" + "".join(f"{command.rstrip()}\n" for command in commands)).encode()


def _config(solved: Solved, seed: int) -> dict[str, object]:
    draft, environment, blueprint = solved.examined.draft, solved.examined.environment, solved.examined.blueprint
    services = [msgspec.to_builtins(service) for service in environment.services]
    return {
        "schema_version": "1.4",
        "task": {
            "name": f"termloom/{directory_name(solved)}",
            "description": draft.title,
            "keywords": list(draft.tags),
        },
        "metadata": {
            "difficulty": draft.difficulty,
            "category": draft.category,
            "tags": list(draft.tags),
            "termloom": {
                "seed": seed,
                "index": blueprint.index,
                "level": draft.level,
                "complexity": blueprint.complexity,
                "scenario": blueprint.scenario,
                "tier": blueprint.tier,
                "style": blueprint.style,
                "persona": blueprint.persona,
                "drawn_category": blueprint.category,
                "families": list(blueprint.families),
                "inventory": list(solved.examined.inventory),
                **({"services": services} if services else {}),
            },
        },
        "agent": {"timeout_sec": _AGENT_TIMEOUT_S, "user": "agent"},
        "verifier": {"timeout_sec": _VERIFIER_TIMEOUT_S, "user": "root"},
        "environment": {
            "build_timeout_sec": 600.0,
            "cpus": 1.0,
            "memory_mb": environment.memory_mb,
            "storage_mb": 1024,
            "network_mode": "public" if environment.network else "no-network",
            **({"healthcheck": _healthcheck(environment)} if services else {}),
        },
    }


def _healthcheck(environment: Environment) -> dict[str, object]:
    """For other runners, which see the image start its services by itself: all of them can be used."""
    services = environment.services
    return {
        "command": " && ".join(f"({service.check})" for service in services),
        "interval_sec": 1.0,
        "timeout_sec": 10.0,
        "retries": sum(service.timeout_s for service in services),
    }

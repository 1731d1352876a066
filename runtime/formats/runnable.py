"""Why a task cannot be run here, in words, before anything is built.

Everything found is told. What only a build or a grading can show (an image that no registry has, a package that is
gone) is left to them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

from runtime.errors import TaskInvalid
from runtime.formats import compose_file
from runtime.formats.format import DOCKERFILE, ORIGIN
from runtime.task import Task
from sandbox.docker.config import volume_refusal
from sandbox.dockerfile import Copy, DockerfileError, Recipe, parse
from sandbox.errors import BuildUnsupported
from sandbox.namespace.builder import resolve
from sandbox.namespace.context import select
from sandbox.spec import BuildContext

_COMPOSE = "docker-compose.yaml"
_SCRIPTS = ("tests/test.sh", "tests/run-tests.sh")
_FETCH = re.compile(
    r"^\s*(sudo\s+)?(?P<what>apt(-get)?\s+(update|install|-)|pip3?\s+install|uv\s+(add|pip|sync|tool|venv)|uvx\s|npm\s+install"
    r"|curl\s.*https?:|wget\s.*https?:|git\s+clone\s+https?:)"
)


def objections(task: Task, *, engine: Literal["docker", "namespace"]) -> list[str]:
    """What keeps this engine from running the task; empty when nothing is known to."""
    found = list(_of_compose(task))
    found += _of_environment(task.config.environment.model_extra or {}, task.config.environment.network_mode)
    if (task.config.environment.model_extra or {}).get("healthcheck") and not task.services:
        found.append("it waits for services that its image starts (healthcheck)")
    found += _of_verifier(task.config.verifier.model_extra or {})
    found += _of_variables(task)
    if task.inventory is None:
        found += _of_scripts(task)
    try:
        return [*found, *_of_build(task.context(), engine)]
    except TaskInvalid as invalid:
        return [*found, *invalid.problems]


def _of_compose(task: Task) -> Iterator[str]:
    for folder in ("environment", ORIGIN):
        data = (task.text(f"{folder}/{_COMPOSE}") or "").encode()
        if data:
            yield from compose_file.objections(data)
        if folder != ORIGIN and (env := compose_file.client_environment(data)):
            yield f"its {_COMPOSE} sets variables ({', '.join(sorted(env))})"


def _of_environment(extra: dict[str, Any], network_mode: str | None) -> Iterator[str]:
    if (system := extra.get("os", "linux")) != "linux":
        yield f"it needs the operating system {system}"
    for device in ("gpus", "tpu"):
        if extra.get(device):
            yield f"it needs {device} ({extra[device]})"
    if extra.get("mcp_servers"):
        yield "it needs MCP servers"
    if network_mode == "allowlist":
        yield "it needs a network with a list of allowed hosts"


def _of_verifier(extra: dict[str, Any]) -> Iterator[str]:
    if extra.get("environment_mode", "shared") != "shared":
        yield "its tests need an environment of their own (verifier.environment_mode)"
    if extra.get("collect"):
        yield "its verdict collects from other services (verifier.collect)"


def _of_variables(task: Task) -> Iterator[str]:
    for table, env in (("environment", task.config.environment.env), ("verifier", task.config.verifier.env)):
        for name, value in env.items():
            if "${" in value:
                yield f"{table}.env.{name} is taken from the host ({value})"
            elif "\n" in value:
                yield f"{table}.env.{name} has several lines"


def _of_scripts(task: Task) -> Iterator[str]:
    for path in _SCRIPTS:
        for number, line in enumerate((task.text(path) or "").splitlines(), start=1):
            if (match := _FETCH.match(line)) is not None:
                where = f"{path}, line {number}: {match['what'].strip()}"
                yield f"its tests need a network, which grading has not ({where})"
                break


def _of_build(context: BuildContext, engine: Literal["docker", "namespace"]) -> Iterator[str]:
    try:
        recipe = _recipe(context, engine)
    except (BuildUnsupported, DockerfileError) as error:
        yield str(error)
        return
    for step in recipe.steps if recipe else ():
        if isinstance(step, Copy):
            try:
                select(step, context.files)
            except DockerfileError as error:
                yield f"{DOCKERFILE}: {error}"
    if engine == "docker" and recipe and (refusal := volume_refusal(recipe.volumes)):
        yield str(refusal)


def _recipe(context: BuildContext, engine: Literal["docker", "namespace"]) -> Recipe | None:
    """The steps as far as we read them; None where only Docker does."""
    if engine == "namespace":
        return resolve(context)[1]
    try:
        return parse(context.dockerfile, engine=engine, environment={})
    except BuildUnsupported:
        return None

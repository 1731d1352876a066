"""What a docker-compose.yaml asks for beyond one container that waits for an agent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from runtime.formats.yaml_text import YamlInvalid, load_mapping

_CLIENTS = ("client", "main")
"""The service in which the agent works, as Terminal-Bench and Harbor call it."""
_HARMLESS = frozenset({
    "build", "command", "container_name", "cpus", "deploy", "environment", "expose", "hostname", "image", "init",
    "labels", "mem_limit", "platform", "ports", "restart", "stdin_open", "stop_grace_period", "tty", "volumes",
    "working_dir",
})  # fmt: skip
"""Keys that change nothing about one container without a network, or are looked at below."""
_WAITING = re.compile(r"(.*\b(sleep inf(inity)?|sleep \d+|tail -f /dev/null)\b.*|(/bin/)?(ba)?sh)", re.DOTALL)
"""Commands that only keep a container up."""


def objections(data: bytes) -> list[str]:
    """Why one container, built from the Dockerfile, is not what the file describes; empty when it is."""
    try:
        services = _services(data)
    except YamlInvalid as invalid:
        return [f"its docker-compose.yaml is {invalid}"]
    name, client = _client(services)
    others = sorted(set(services) - {name})
    found = [f"it needs more than one container ({', '.join(others)})"] if others else []
    asked = sorted(set(client) - _HARMLESS) + (["devices"] if "devices" in str(client.get("deploy")) else [])
    found += [f"its container asks for {', '.join(asked)}"] if asked else []
    return [*found, *_of_build(client.get("build")), *_of_volumes(client.get("volumes")), *_of_start(client)]


def client_environment(data: bytes) -> dict[str, str]:
    """Variables of the agent's container with a value of their own; those of the harness (`${...}`) are left out."""
    try:
        _, client = _client(_services(data))
    except YamlInvalid:
        return {}
    given = client.get("environment") or {}
    listed = [str(entry).partition("=")[::2] for entry in given] if isinstance(given, list) else []
    pairs = given.items() if isinstance(given, dict) else listed
    return {str(name): str(value) for name, value in pairs if value is not None and "${" not in str(value)}


def _services(data: bytes) -> dict[str, Any]:
    services = load_mapping(data, aliases=True).get("services")
    if not isinstance(services, dict) or not services:
        raise YamlInvalid("without services")
    return {str(name): service if isinstance(service, dict) else {} for name, service in services.items()}


def _client(services: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    name = next((name for name in _CLIENTS if name in services), next(iter(services)))
    return name, services[name]


def _of_build(build: Any) -> Iterator[str]:
    if not isinstance(build, dict):
        return
    if build.get("args"):
        yield "its image is built with arguments (build.args)"
    if str(build.get("dockerfile", "Dockerfile")).removeprefix("./") != "Dockerfile":
        yield f"its image is built from {build['dockerfile']}"
    if str(build.get("context", ".")).rstrip("/") not in (".", "", "${CONTEXT_DIR}"):
        yield f"its image is built in another directory ({build['context']})"


def _of_volumes(volumes: Any) -> Iterator[str]:
    for volume in volumes if isinstance(volumes, list) else ():
        source = str(volume.get("source", "") if isinstance(volume, dict) else volume)
        if not source.startswith("${"):
            yield f"its container mounts {source.partition(':')[0] or 'a volume'}"


def _of_start(client: dict[str, Any]) -> Iterator[str]:
    command = client.get("command") or ""
    text = " ".join(map(str, command)) if isinstance(command, list) else str(command)
    if text and not _WAITING.fullmatch(text):
        yield f"its container starts a program of its own ({text[:60]})"

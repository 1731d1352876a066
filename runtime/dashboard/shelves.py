"""Pages about a folder: its tasks, its trajectories turn by turn. For the daemon's jobs and for `termloom view`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runtime.dashboard.library import Library, text_of
from runtime.errors import UserError
from runtime.task import Task
from runtime.trajectory import Trajectory, Turn

if TYPE_CHECKING:
    from runtime.dashboard.pages import Templates


@dataclass(frozen=True, kw_only=True)
class Shelf:
    """One folder under one address."""

    title: str
    address: str
    back: str
    library: Library


class TurnView(msgspec.Struct, frozen=True, kw_only=True):
    """One turn, with what a reader should notice."""

    turn: Turn
    mark: str
    """`mistake`, `recovery`, `failed`, `lost` or nothing."""


def shelf_routes(prefix: str, shelf: Callable[[Request], Shelf], templates: Templates) -> list[Route]:
    """The routes below `prefix`; `shelf` finds the folder that a request is about."""
    safely = templates.safely
    return [
        Route(prefix, safely(partial(_contents, shelf, templates))),
        Route(f"{prefix}/tasks/{{task}}", safely(partial(_task, shelf, templates))),
        Route(f"{prefix}/trajectories/{{file:path}}/{{number:int}}", safely(partial(_trajectory, shelf, templates))),
        Route(f"{prefix}/trajectories/{{file:path}}", safely(partial(_trajectories, shelf, templates))),
    ]


async def _contents(find: Callable[[Request], Shelf], templates: Templates, request: Request) -> Response:
    shelf = find(request)
    tasks = await anyio.to_thread.run_sync(shelf.library.tasks)
    files = await anyio.to_thread.run_sync(shelf.library.trajectory_files)
    return templates.page("contents.html", shelf=shelf, tasks=tasks, files=files)


async def _task(find: Callable[[Request], Shelf], templates: Templates, request: Request) -> Response:
    shelf = find(request)
    task = await anyio.to_thread.run_sync(shelf.library.task, request.path_params["task"])
    return templates.page("task.html", shelf=shelf, name=request.path_params["task"], **_task_view(task))


async def _trajectories(find: Callable[[Request], Shelf], templates: Templates, request: Request) -> Response:
    shelf, file = find(request), request.path_params["file"]
    lines = await anyio.to_thread.run_sync(shelf.library.trajectories, file)
    return templates.page("trajectories.html", shelf=shelf, file=file, lines=lines)


async def _trajectory(find: Callable[[Request], Shelf], templates: Templates, request: Request) -> Response:
    shelf, file, index = find(request), request.path_params["file"], request.path_params["number"]
    trajectory = await anyio.to_thread.run_sync(shelf.library.trajectory, file, index)
    return templates.page(
        "trajectory.html",
        shelf=shelf,
        file=file,
        index=index,
        last=await anyio.to_thread.run_sync(partial(_is_last, shelf.library, file, index)),
        trajectory=trajectory,
        turns=turn_views(trajectory),
    )


def _is_last(library: Library, file: str, number: int) -> bool:
    try:
        library.trajectory(file, number + 1)
    except UserError:
        return True
    return False


def turn_views(trajectory: Trajectory) -> list[TurnView]:
    """Turns with their marks: after a mistake, the first correct turn that works is its recovery."""
    views, open_mistake = list[TurnView](), False
    for turn in trajectory.turns:
        mark = ""
        if turn.intent == "error":
            mark, open_mistake = "mistake", True
        elif turn.action == "malformed":
            mark = "malformed"
        elif turn.exit_code not in (0, None) or turn.timed_out:
            mark = "failed"
        elif open_mistake and turn.action == "command":
            mark, open_mistake = "recovery", False
        views.append(TurnView(turn=turn, mark=mark))
    return views


def _task_view(task: Task) -> dict[str, Any]:
    certificate: dict[str, Any] = {}
    if task.certificate:
        certificate = json.loads(task.certificate)
    return {
        "instruction": task.instruction,
        "files": [(file.path, text_of(file.data)) for file in _ordered(task) if not _is_material(file.path)],
        "material": [(file.path, text_of(file.data)) for file in task.files if _is_material(file.path)],
        "certificate": certificate,
        "certificate_text": json.dumps(certificate, indent=2, ensure_ascii=False),
        "task_hash": task.hash(),
        "metadata": {
            key: ", ".join(map(str, value)) if isinstance(value, list) else value
            for key, value in task.config.metadata.items()
            if not isinstance(value, dict)
        },
    }


def _is_material(path: str) -> bool:
    """What an environment is made from, of which there may be much."""
    return path.startswith("environment/") and path != "environment/Dockerfile"


def _ordered(task: Task) -> Sequence[Any]:
    """The files a reader looks for first: tests, solution, then the environment."""
    order = {"tests": 0, "solution": 1, "environment": 2}
    return sorted(task.files, key=lambda file: (order.get(file.path.partition("/")[0], 3), file.path))

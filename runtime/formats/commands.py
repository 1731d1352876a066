"""The commands `import` and `export`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from runtime.options import Common

if TYPE_CHECKING:
    from runtime.formats.transfer import Transferred

_PLAIN_WIDTH = 160
"""Columns where nobody tells how wide the screen is."""


async def import_tasks(
    *sources: Path,
    out: Path,
    source_format: Annotated[
        Literal["auto", "harbor", "terminal-bench", "endless-terminals"], Parameter(name="--from")
    ] = "auto",
    sandbox: Literal["auto", "docker", "namespace"] | None = None,
    common: Common = Common(),
) -> int:
    """Import tasks of other systems; say which can be run here, and why others cannot.

    Args:
        sources: Task directories, or folders of them.
        out: Directory for the tasks, each under its own name.
        source_format: What they are; auto tells by task.toml, task.yaml or task.json.
        sandbox: Which engine they are to be run with.
    """
    import anyio.to_thread

    from runtime.formats.transfer import import_all
    from sandbox.errors import EngineUnavailable
    from sandbox.open import choose_engine

    settings = common.settings(options={"sandbox.engine": sandbox})
    if common.dry_run:
        return common.show(settings)
    _require(sources, "import")
    engine, because = settings.sandbox.engine, tuple[str, ...]()
    try:
        engine = await choose_engine(engine, lambda _: None, settings.sandbox.docker_url or None)
    except EngineUnavailable as missing:
        because = (str(missing),)

    def work() -> list[Transferred]:
        kind: Literal["docker", "namespace"] = "namespace" if engine == "namespace" else "docker"
        return import_all(sources, out, format_name=source_format, engine=kind, because=because)

    return _show(await anyio.to_thread.run_sync(work), imported=True, as_json=common.json)


async def export_tasks(
    *tasks: Path,
    out: Path,
    target_format: Annotated[Literal["harbor", "terminal-bench", "endless-terminals"], Parameter(name="--to")],
    common: Common = Common(),
) -> int:
    """Export tasks to the format of another system.

    Args:
        tasks: Task directories, or folders of them.
        out: Directory for what is written, each task under its own name.
        target_format: What to write.
    """
    import anyio.to_thread

    from runtime.formats.transfer import export_all

    if common.dry_run:
        return common.show(common.settings())
    _require(tasks, "export")

    def work() -> list[Transferred]:
        return export_all(tasks, out, format_name=target_format)

    return _show(await anyio.to_thread.run_sync(work), imported=False, as_json=common.json)


def _require(sources: Sequence[Path], command: str) -> None:
    from runtime.errors import UserError

    if not sources:
        raise UserError(command, "no directory is named", "Give one or more task directories, or folders of them")


def _show(results: Sequence[Transferred], *, imported: bool, as_json: bool) -> int:
    """What became of each task; 1 when one was refused."""
    refused = sum(result.directory is None for result in results)
    if as_json:
        tasks = [_as_json(result, imported=imported) for result in results]
        sys.stdout.write(json.dumps({"kind": "result", "tasks": tasks}, ensure_ascii=False) + "\n")
    else:
        _print_table(results, imported=imported)
        done = "imported" if imported else "exported"
        unfit = sum(bool(result.because) for result in results)
        tail = f", {unfit} of them cannot be run here" if imported and unfit else ""
        sys.stdout.write(f"{len(results) - refused} of {len(results)} tasks {done}{tail}\n")
    return 1 if refused else 0


def _print_table(results: Sequence[Transferred], *, imported: bool) -> None:
    from rich.console import Console

    from runtime.progress import table

    columns = ("task", "format", "runnable" if imported else "exported", "left out")
    rows = [(r.source.name, r.format, _verdict(r, imported=imported), ", ".join(r.left_out)) for r in results]
    Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH).print(table(columns, rows))


def _verdict(result: Transferred, *, imported: bool) -> str:
    if result.directory is None:
        return f"{'not imported' if imported else 'no'}, because {'; '.join(result.refused)}"
    return f"no, because {'; '.join(result.because)}" if result.because else "yes"


def _as_json(result: Transferred, *, imported: bool) -> dict[str, object]:
    shown: dict[str, object] = {
        "source": str(result.source),
        "format": result.format,
        "directory": str(result.directory) if result.directory else None,
        "refused": result.refused,
        "left_out": result.left_out,
    }
    if imported:
        shown |= {"runnable": result.directory is not None and not result.because, "because": result.because}
    return shown

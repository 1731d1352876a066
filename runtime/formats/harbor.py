"""Harbor's task format, 0.x to 1.4: the one that tasks have here anyway.

A task keeps every file and every key; keys of older versions are written in today's spelling.
"""

from __future__ import annotations

from pathlib import Path

from runtime.formats.format import Exported, Format, Imported
from runtime.task import CERTIFICATE, Task, read_task
from sandbox.spec import File


def read(directory: Path) -> Imported:
    return Imported(task=read_task(directory))


def write(task: Task, name: str) -> Exported:
    certificate = () if task.certificate is None else (File(path=CERTIFICATE, data=task.certificate),)
    return Exported(files=(*task.layout(), *certificate))


FORMAT = Format(name="harbor", mark="task.toml", read=read, write=write)

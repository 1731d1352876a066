"""Basics about whole files: copy, move, delete, make a directory."""

from __future__ import annotations

from generators.procedural.checks import absent, check
from generators.procedural.families.basics import Basic, Scene, confused
from generators.procedural.steps import Step, slip

_CATEGORY = "file operations"


def _copy(scene: Scene) -> Step:
    source, target = scene.file(), scene.path()
    return Step(
        says=(
            f"Make a copy of the file {source} with the path {target}; the original stays as it is.",
            f"Please put a second copy of {source} at {target} and keep the first.",
            f"Copy {source} to {target}.",
        ),
        thought="A plain copy.",
        command=f"cp {source} {target}",
        checks=(scene.holds(target, scene.files[source]), scene.keeps(source)),
        mistakes=confused(source, target, "cp"),
    )


def _move(scene: Scene) -> Step:
    source, target = scene.file(), scene.path()
    return Step(
        says=(
            f"Move the file {source} to {target}, so that nothing is left under the old path.",
            f"The file {source} should be called {target} from now on.",
            f"Move {source} to {target}.",
        ),
        thought="A move leaves nothing behind.",
        command=f"mv {source} {target}",
        checks=(scene.holds(target, scene.files[source]), absent(source)),
        mistakes=confused(source, target, "mv"),
    )


def _delete(scene: Scene) -> Step:
    path = scene.file()
    return Step(
        says=(
            f"Delete the file {path} and no other.",
            f"The file {path} is no longer needed, please remove it.",
            f"Delete {path}.",
        ),
        thought="Remove that one file.",
        command=f"rm {path}",
        checks=(absent(path),),
        mistakes=(
            slip("requirement_violation", f"truncate -s 0 {path}", "An empty file is as good as none."),
            slip("command_error", f"touch {path}", "That takes care of the file."),
            slip("analysis_error", f"sort -o {path} {path}", "The file is to be tidied up."),
        ),
    )


def _directory(scene: Scene) -> Step:
    path = f"{scene.directory}/{scene.name()}"
    verdict = "assert os.path.isdir(path) and not os.path.islink(path), f'{path} is not a directory'"
    return Step(
        says=(
            f"Create a new directory with the path {path}.",
            f"We need a directory {path}, please make it.",
            f"Make the directory {path}.",
        ),
        thought="One new directory.",
        command=f"mkdir {path}",
        checks=(check(path, "directory", verdict),),
        mistakes=(
            slip("command_error", f"touch {path}", "touch makes what is missing.", f"rm {path}"),
            slip("hallucination", f"ln -s . {path}", "A link to a directory is a directory.", f"rm {path}"),
            slip("requirement_violation", f"mkdir {path}.d", "Directories are marked with .d.", f"rmdir {path}.d"),
        ),
    )


COPY = Basic(name="basics-copy", category=_CATEGORY, tools=("cp",), title="Copy a file", job=_copy)
DELETE = Basic(name="basics-delete", category=_CATEGORY, tools=("rm",), title="Delete a file", job=_delete)
DIRECTORY = Basic(
    name="basics-directory", category=_CATEGORY, tools=("mkdir",), title="Make a directory", job=_directory
)
MOVE = Basic(name="basics-move", category=_CATEGORY, tools=("mv",), title="Move a file", job=_move)

"""Apptainer definitions to Dockerfiles, and Dockerfiles to definitions.

Invariants:
- What would build something else is refused (`DefinitionUnsupported`), never turned into something else in silence.
- A Dockerfile made here needs no BuildKit, and one whose %post begins with the base lines' own command starts from the
  base environment.

A definition has no directory to start in: `%post` runs in `/`, and `WORKDIR` gets lost on the way to one.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from sandbox.base import BASE_DOCKERFILE
from sandbox.dockerfile import Copy, DockerfileError, MakeDirectory, Run, parse
from sandbox.errors import BuildUnsupported
from sandbox.namespace.context import select
from sandbox.spec import BuildContext, File

HOME = "/home/user"
"""Where Endless Terminals lets its agent work."""

_STAGE = "/.context"
"""Where a definition keeps the build context while it is built."""
_SECTION = re.compile(r"%(\w+)\s*(.*)")
_SILENT = frozenset({"help", "labels", "runscript", "startscript", "test"})
_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)")
_BASE_FROM, _BASE_RUN = BASE_DOCKERFILE.rstrip("\n").split("\n")
_BASE_COMMAND = _BASE_RUN.removeprefix("RUN ")


class DefinitionUnsupported(Exception):
    """The environment cannot be told in the other form."""


@dataclass
class _Definition:
    header: dict[str, str] = field(default_factory=dict)
    sections: dict[str, list[str]] = field(default_factory=dict)


def to_dockerfile(text: str, files: Collection[str]) -> str:
    """The Dockerfile that builds what the definition describes.

    Args:
        files: paths that lie beside the definition.

    Raises: DefinitionUnsupported.
    """
    definition = _read(text)
    image = _image(definition.header)
    post = _script(definition.sections.get("post", []))
    base = f"FROM {image}\n"
    if base.rstrip() == _BASE_FROM and post.split("\n", 1)[0] == _BASE_COMMAND:
        base, post = BASE_DOCKERFILE, post.partition("\n")[2]
    copies = _copies(definition.sections.get("files", []), files)
    run = [f"RUN {json.dumps(['/bin/sh', '-ec', post])}"] if post.strip() else []
    variables = _variables(definition.sections.get("environment", []))
    return base + "".join(f"{line}\n" for line in (*copies, *run, *variables, *_home(text)))


def copied(text: str, files: Collection[str]) -> set[str]:
    """The files beside a definition that it copies. Raises: DefinitionUnsupported."""
    section = _read(text).sections.get("files", [])
    return {source for source, _ in _pairs(section, files)}


def from_dockerfile(context: BuildContext, *, folder: str) -> str:
    """The definition that builds what the Dockerfile describes, with the build context in `folder` beside it.

    Newlines at the end of a RUN step's argument get lost.

    Raises: DefinitionUnsupported.
    """
    try:
        recipe = parse(context.dockerfile, engine="definition", environment={})
        steps = [line for step in recipe.steps for line in _step(step, context.files)]
    except (DockerfileError, BuildUnsupported) as error:
        raise DefinitionUnsupported(str(error)) from None
    if context.dockerfile.startswith(BASE_DOCKERFILE):
        steps[0] = _BASE_COMMAND
    lines = ["Bootstrap: docker", f"From: {recipe.base}", ""]
    if context.files:
        lines += ["%files", *(_files_line(folder, file) for file in context.files), ""]
    lines += ["%post", *(f"    {line}" for line in steps), f"    rm -rf {_STAGE}", ""]
    if recipe.env:
        lines += ["%environment", *(f"    export {k}={shlex.quote(v)}" for k, v in recipe.env.items()), ""]
    return "\n".join(lines)


# From a definition


def _read(text: str) -> _Definition:
    definition, section = _Definition(), ""
    for line in text.replace("\r\n", "\n").split("\n"):
        if (match := _SECTION.match(line)) is not None:
            section = match[1].lower()
            _refuse_section(section, match[2])
            definition.sections.setdefault(section, [])
        elif section:
            if line.lower().startswith("bootstrap:"):
                raise DefinitionUnsupported("it has several stages")
            definition.sections[section].append(line)
        elif ":" in line and not line.lstrip().startswith("#"):
            key, _, value = line.partition(":")
            definition.header[key.strip().lower()] = value.strip()
    return definition


def _refuse_section(section: str, arguments: str) -> None:
    known = {"post", "files", "environment", *_SILENT}
    if section == "setup":
        raise DefinitionUnsupported("its %setup runs commands on the host")
    if section not in known:
        raise DefinitionUnsupported(f"its section %{section} is not known")
    if arguments and section not in _SILENT:
        raise DefinitionUnsupported(f"its %{section} has arguments ({arguments.strip()})")


def _image(header: dict[str, str]) -> str:
    kind, source = header.get("bootstrap", ""), header.get("from", "")
    if kind == "docker" and source:
        return source
    if kind == "localimage" and source.endswith(".sif"):
        name, _, tag = posixpath.basename(source).removesuffix(".sif").rpartition("_")
        if name and tag:
            return f"{name}:{tag}"
    raise DefinitionUnsupported(f"it starts from {kind or 'nothing'} {source}".rstrip())


def _script(lines: Sequence[str]) -> str:
    """A section's commands. Indentation goes only where all lines have it: here-documents keep their shape."""
    filled = [line for line in lines if line.strip()]
    margin = min((len(line) - len(line.lstrip(" ")) for line in filled), default=0)
    return "\n".join(line[margin:] for line in lines).strip("\n")


def _copies(lines: Sequence[str], files: Collection[str]) -> Iterator[str]:
    for source, target in _pairs(lines, files):
        yield f"COPY {json.dumps([source, target])}"


def _pairs(lines: Sequence[str], files: Collection[str]) -> Iterator[tuple[str, str]]:
    """Each file that %files copies, with its place."""
    for line in lines:
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise DefinitionUnsupported(f"its %files cannot be read ({line.strip()}: {error})") from None
        if not words:
            continue
        source, target = posixpath.normpath(words[0]), (words[1:] or words)[0]
        if source.startswith(("/", "../")) or not target.startswith("/"):
            raise DefinitionUnsupported(f"its %files copies {words[0]} from the host")
        below = sorted(path for path in files if path.startswith(f"{source}/"))
        if source not in files and not below:
            raise DefinitionUnsupported(f"its %files copies {words[0]}, which is not there")
        yield from [(source, target)] if source in files else []
        inside = posixpath.join(target, posixpath.basename(source)) if target.endswith("/") else target
        yield from ((path, f"{inside}/{path.removeprefix(f'{source}/')}") for path in below)


def _variables(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match = _ASSIGNMENT.fullmatch(text)
        if match is None or "$(" in text or "`" in text or ";" in text:
            raise DefinitionUnsupported(f"its %environment is a program ({text})")
        yield f"ENV {match[1]}={match[2]}"


def _home(text: str) -> list[str]:
    """Apptainer's agent is whoever starts it: the home that the definition makes must be open to everyone."""
    return [f"RUN chmod -R a+rwX {HOME}", f"WORKDIR {HOME}"] if HOME in text else []


# To a definition


def _files_line(folder: str, file: File) -> str:
    return f"    {shlex.quote(f'{folder}/{file.path}')} {shlex.quote(f'{_STAGE}/{file.path}')}"


def _step(step: Run | Copy | MakeDirectory, files: Sequence[File]) -> Iterator[str]:
    match step:
        case Run():
            yield _run(step)
        case MakeDirectory():
            yield f"mkdir -p {shlex.quote(step.path)}"
        case Copy():
            yield from _copy(step, files)


def _run(step: Run) -> str:
    variables = [f"{name}={value}" for name, value in step.env.items()]
    argv = ["env", *variables, *step.argv] if variables else list(step.argv)
    if step.user not in ("", "root", "0"):
        argv = ["runuser", "-u", step.user, "--", *argv]
    return f"cd {shlex.quote(step.cwd)} && {' '.join(map(_word, argv))}"


def _copy(step: Copy, files: Sequence[File]) -> Iterator[str]:
    owner, sources = shlex.quote(step.owner), {file.data: file.path for file in files}
    taken = select(step, files)
    for folder in _folders(placed.path for placed in taken):
        yield f"[ -d {folder} ] || {{ mkdir {folder} && chown {owner} {folder}; }}"
    for placed in taken:
        data, target = placed.data or b"", shlex.quote(placed.path)
        if placed.inside:
            inner = shlex.quote(posixpath.join(placed.path, placed.inside))
            yield f"target={target}; if [ -d $target ]; then target={inner}; fi"
            target = '"$target"'
        source = sources.get(data)
        made = f"cp {shlex.quote(f'{_STAGE}/{source}')}" if source else f"printf %b {_escaped(data.decode())} >"
        yield f"{made} {target} && chmod {placed.mode:o} {target} && chown {owner} {target}"


def _folders(paths: Iterable[str]) -> list[str]:
    """Every folder above the paths, the outer before the inner, quoted."""
    above = {str(folder) for path in paths for folder in PurePosixPath(path).parents}
    return [shlex.quote(folder) for folder in sorted(above - {"/"})]


def _word(text: str) -> str:
    """One argument on one line, as a line of a definition that starts with % would begin a section."""
    return f'"$(printf %b {_escaped(text)})"' if "\n" in text else shlex.quote(text)


def _escaped(text: str) -> str:
    """For printf's %b."""
    return shlex.quote(text.replace("\\", "\\\\").replace("\n", "\\n"))

"""Dockerfile text to resolved build steps, for engines that build without Docker.

`parse` does everything that needs no machine: lines, here-documents, variables, working directory and user. What comes
out is a `Recipe` whose steps only have to be carried out, in order.

Invariants:
- What Docker would build otherwise is refused (`BuildUnsupported`), never built differently in silence.
- What Docker would refuse as well is a `DockerfileError`: the author's mistake, shown as a failed build.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from sandbox.errors import BuildUnsupported
from sandbox.spec import File, Record

_REMEDY = "Use the Docker engine for this environment."
_IGNORED = frozenset({"CMD", "ENTRYPOINT", "EXPOSE", "LABEL", "STOPSIGNAL", "HEALTHCHECK", "MAINTAINER"})
_ARCHIVE = re.compile(r"\.(tar|tgz|tbz2|txz|tar\.(gz|bz2|xz|zst))$")
_DIRECTIVE = re.compile(r"#\s*(escape|syntax)\s*=\s*(\S+)\s*$", re.IGNORECASE)
_CONTINUED = re.compile(r"\\[ \t]*$")
_HEREDOC = re.compile(r"(?:(?<=\s)|^)\d*<<(?P<strip>-?)(?P<quote>[\"']?)(?P<word>[A-Za-z_]\w*)(?P=quote)(?=\s|$)")
_FLAG = re.compile(r"--(?P<name>[a-z-]+)(?:=(?P<value>\S*))?(?:\s+|$)")
_VARIABLE = re.compile(r"\$(?:(?P<bare>\w+)|\{(?P<name>\w+)(?:(?P<operator>:?[-+])(?P<word>[^}]*))?\})")
_ENV_PAIR = re.compile(r"[A-Za-z_][\w.-]*=")


class DockerfileError(Exception):
    """The text is wrong: Docker would not build it either."""

    def __init__(self, step: str, problem: str) -> None:
        self.step, self.problem = step, problem
        super().__init__(f"{step}: {problem}")


class Run(Record, frozen=True, kw_only=True):
    """One command."""

    text: str
    """The instruction as written."""
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    user: str


class Copy(Record, frozen=True, kw_only=True):
    """Files of the context, or written in the Dockerfile itself, to one target."""

    text: str
    sources: tuple[str, ...]
    inline: tuple[File, ...]
    target: str
    """Absolute."""
    into_directory: bool
    """Whether `target` is a directory for sure; when not, it still may turn out to be one."""
    owner: str
    mode: int | None


class MakeDirectory(Record, frozen=True, kw_only=True):
    """The directory of a WORKDIR."""

    text: str
    path: str
    owner: str


Step = Run | Copy | MakeDirectory


class Recipe(Record, frozen=True, kw_only=True):
    """A parsed Dockerfile: what to start from, what to do, and what the image is configured to."""

    base: str
    steps: tuple[Step, ...]
    workdir: str
    """Empty when never set."""
    env: dict[str, str]
    user: str
    volumes: tuple[str, ...]


class _Heredoc(NamedTuple):
    name: str
    body: str
    literal: bool


class _Line(NamedTuple):
    """One instruction, continuation lines joined."""

    keyword: str
    text: str
    rest: str
    heredocs: tuple[_Heredoc, ...]


def parse(dockerfile: str, *, engine: str, environment: Mapping[str, str]) -> Recipe:
    """Resolve `dockerfile` over a base whose environment is `environment`.

    Raises: DockerfileError, BuildUnsupported (naming `engine`).
    """
    parser = _Parser(engine, environment)
    for line in _lines(dockerfile, engine):
        parser.take(line)
    return parser.recipe()


def _lines(dockerfile: str, engine: str) -> Iterator[_Line]:
    lines = iter(dockerfile.replace("\r\n", "\n").split("\n"))
    in_directives = True
    for line in lines:
        if in_directives and (directive := _DIRECTIVE.match(line)):
            if directive[1].lower() == "escape" and directive[2] != "\\":
                raise BuildUnsupported(engine, f"a Dockerfile with escape={directive[2]}", _REMEDY)
            continue
        in_directives = False
        if line.strip() and not line.lstrip().startswith("#"):
            yield _whole_line(line, lines)


def _whole_line(line: str, following: Iterator[str]) -> _Line:
    written, joined = [line], ""
    while _CONTINUED.search(line):
        joined += _CONTINUED.sub("", line)
        line = next((text for text in following if text.strip() and not text.lstrip().startswith("#")), "")
        written.append(line)
    text = (joined + line).strip()
    keyword, _, rest = text.partition(" ") if " " in text else text.partition("\t")
    heredocs: tuple[_Heredoc, ...] = ()
    if keyword.upper() in ("RUN", "COPY", "ADD"):
        heredocs = tuple(_heredoc(match, following, text) for match in _heredoc_marks(rest))
    return _Line(keyword.upper(), "\n".join(written).strip(), rest.strip(), heredocs)


def _heredoc_marks(text: str) -> list[re.Match[str]]:
    return [match for match in _HEREDOC.finditer(text) if not _inside_quotes(text[: match.start()])]


def _inside_quotes(before: str) -> bool:
    quote = ""
    for character in re.sub(r"\\.", "", before):
        if quote == "":
            quote = character if character in "\"'" else ""
        elif character == quote:
            quote = ""
    return quote != ""


def _heredoc(match: re.Match[str], following: Iterator[str], text: str) -> _Heredoc:
    body: list[str] = []
    for line in following:
        content = line.lstrip("\t") if match["strip"] else line
        if content == match["word"]:
            return _Heredoc(match["word"], "".join(f"{part}\n" for part in body), bool(match["quote"]))
        body.append(content)
    raise DockerfileError(text, f"the here-document {match['word']!r} does not end")


def split_words(text: str) -> list[str]:
    """Split at white space outside quotes; quotes and escapes stay in the words."""
    return re.findall(r"(?:\\.|\"(?:\\.|[^\"\\])*\"|'[^']*'|[^\s\"'\\]|[\"'\\])+", text)


def expand(word: str, variables: Mapping[str, str]) -> str:
    """Replace variables and take quotes away, as Docker does. An unset variable is empty."""
    pieces = re.findall(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.|\$\{[^}]*\}|\$\w+|.", word, re.DOTALL)
    return "".join(_expand_piece(piece, variables) for piece in pieces)


def _expand_piece(piece: str, variables: Mapping[str, str]) -> str:
    if len(piece) > 1 and piece[0] == "'":
        return piece[1:-1]
    if len(piece) > 1 and piece[0] == '"':
        inner = re.findall(r"\\.|\$\{[^}]*\}|\$\w+|.", piece[1:-1], re.DOTALL)
        return "".join(
            part if part[0] == "\\" and part[1:] not in ('"', "\\", "$") else _expand_piece(part, variables)
            for part in inner
        )
    if len(piece) > 1 and piece[0] == "\\":
        return piece[1:]
    match = _VARIABLE.fullmatch(piece)
    return _value(match, variables) if match else piece


def _value(match: re.Match[str], variables: Mapping[str, str]) -> str:
    name, operator = match["bare"] or match["name"], match["operator"]
    value = variables.get(name)
    if operator is None:
        return value or ""
    is_set = bool(value) if operator.startswith(":") else value is not None
    word = expand(match["word"], variables)
    if operator.endswith("-"):
        return (value or "") if is_set else word
    return word if is_set else ""


def _json_words(text: str) -> list[str] | None:
    if not text.startswith("["):
        return None
    try:
        words = json.loads(text)
    except ValueError:
        return None
    return words if isinstance(words, list) and all(isinstance(word, str) for word in words) else None


class _Parser:
    """State of one stage while its instructions are read."""

    def __init__(self, engine: str, environment: Mapping[str, str]) -> None:
        self._engine = engine
        self._inherited = dict(environment)
        self._env: dict[str, str] = {}
        self._arguments: dict[str, str] = {}
        self._global_arguments: dict[str, str] = {}
        self._shell = ["/bin/sh", "-c"]
        self._workdir, self._user, self._base = "", "root", ""
        self._steps: list[Step] = []
        self._volumes: list[str] = []
        self._handlers: dict[str, Callable[[_Line], None]] = {
            "FROM": self._from, "ARG": self._arg, "ENV": self._set_env, "RUN": self._run, "COPY": self._copy,
            "ADD": self._add, "WORKDIR": self._set_workdir, "USER": self._set_user, "SHELL": self._set_shell,
            "VOLUME": self._add_volumes,
        }  # fmt: skip

    def recipe(self) -> Recipe:
        if not self._base:
            raise DockerfileError("(end)", "there is no FROM")
        return Recipe(
            base=self._base,
            steps=tuple(self._steps),
            workdir=self._workdir,
            env=self._env,
            user=self._user,
            volumes=tuple(self._volumes),
        )

    def take(self, line: _Line) -> None:
        if not self._base and line.keyword not in ("FROM", "ARG"):
            raise DockerfileError(line.text, "the first instruction must be FROM")
        handler = self._handlers.get(line.keyword)
        if handler is not None:
            if not line.rest:
                raise DockerfileError(line.text, "it has no argument")
            handler(line)
        elif line.keyword == "ONBUILD":
            raise self._unsupported("ONBUILD")
        elif line.keyword not in _IGNORED:
            raise DockerfileError(line.text, f"unknown instruction {line.keyword}")

    def _unsupported(self, what: str) -> BuildUnsupported:
        return BuildUnsupported(self._engine, what, _REMEDY)

    @property
    def _variables(self) -> dict[str, str]:
        return self._arguments | self._inherited | self._env

    def _flags(self, line: _Line, allowed: tuple[str, ...] = ()) -> tuple[dict[str, str], str]:
        """Leading `--name=value` options and what follows them."""
        flags: dict[str, str] = {}
        rest = line.rest
        while match := _FLAG.match(rest):
            if match["name"] not in allowed:
                raise self._unsupported(f"{line.keyword} --{match['name']}")
            flags[match["name"]] = expand(match["value"] or "", self._variables)
            rest = rest[match.end() :]
        return flags, rest

    def _from(self, line: _Line) -> None:
        if self._base:
            raise self._unsupported("a Dockerfile of several stages")
        words = split_words(self._flags(line)[1])
        self._base = expand(words[0], self._global_arguments)

    def _arg(self, line: _Line) -> None:
        for word in split_words(line.rest):
            name, given, value = word.partition("=")
            scope = self._arguments if self._base else self._global_arguments
            if given:
                scope[name] = expand(value, self._variables if self._base else self._global_arguments)
            elif self._base and name in self._global_arguments:
                scope[name] = self._global_arguments[name]

    def _set_env(self, line: _Line) -> None:
        variables = self._variables
        words = split_words(line.rest)
        if not _ENV_PAIR.match(words[0]):
            name, _, value = line.rest.partition(" ")
            if not value.strip():
                raise DockerfileError(line.text, "ENV needs a value")
            self._env[name] = expand(value.strip(), variables)
            return
        for word in words:
            name, given, value = word.partition("=")
            if not given:
                raise DockerfileError(line.text, f"{word!r} is not NAME=VALUE")
            self._env[name] = expand(value, variables)

    def _run(self, line: _Line) -> None:
        rest = self._flags(line)[1]
        argv = _json_words(rest) or [*self._shell, self._script(rest, line.heredocs)]
        environment = self._arguments | self._env
        cwd = self._workdir or "/"
        self._steps.append(Run(text=line.text, argv=tuple(argv), env=environment, cwd=cwd, user=self._user))

    def _script(self, rest: str, heredocs: tuple[_Heredoc, ...]) -> str:
        if not heredocs:
            return rest
        if len(heredocs) == 1 and _HEREDOC.fullmatch(rest):
            if heredocs[0].body.startswith("#!"):
                raise self._unsupported("a RUN here-document with its own interpreter")
            return heredocs[0].body
        return "\n".join([rest, *(f"{heredoc.body}{heredoc.name}" for heredoc in heredocs), ""])

    def _copy(self, line: _Line) -> None:
        flags, rest = self._flags(line, ("chown", "chmod"))
        words = [expand(word, self._variables) for word in _json_words(rest) or split_words(rest)]
        if len(words) < 2:
            raise DockerfileError(line.text, f"{line.keyword} needs a source and a target")
        *sources, target = words
        marks = {f"<<{heredoc.name}" for heredoc in line.heredocs} | {f"<<-{heredoc.name}" for heredoc in line.heredocs}
        plain = tuple(source for source in sources if source not in marks)
        self._steps.append(
            Copy(
                text=line.text,
                sources=plain,
                inline=tuple(self._inline(heredoc) for heredoc in line.heredocs),
                target=self._absolute(target),
                into_directory=target.endswith("/") or target == "." or len(sources) > 1,
                owner=flags.get("chown", "root"),
                mode=self._octal(flags.get("chmod"), line),
            )
        )

    def _inline(self, heredoc: _Heredoc) -> File:
        text = heredoc.body
        if not heredoc.literal:
            text = re.sub(r"\\\$|" + _VARIABLE.pattern, lambda match: expand(match[0], self._variables), text)
        return File(path=heredoc.name, data=text.encode())

    def _octal(self, mode: str | None, line: _Line) -> int | None:
        if mode is None:
            return None
        if not re.fullmatch(r"[0-7]{3,4}", mode):
            raise DockerfileError(line.text, f"--chmod={mode} is not an octal mode")
        return int(mode, 8)

    def _add(self, line: _Line) -> None:
        self._copy(line)
        copy = self._steps[-1]
        assert isinstance(copy, Copy)
        for source in copy.sources:
            if "://" in source or source.startswith("git@"):
                raise self._unsupported(f"ADD of the address {source}")
            if _ARCHIVE.search(source):
                raise self._unsupported(f"ADD of the archive {source}")

    def _set_workdir(self, line: _Line) -> None:
        self._workdir = self._absolute(expand(line.rest, self._variables))
        self._steps.append(MakeDirectory(text=line.text, path=self._workdir, owner=self._user))

    def _set_user(self, line: _Line) -> None:
        self._user = expand(line.rest, self._variables)

    def _add_volumes(self, line: _Line) -> None:
        words = _json_words(line.rest) or split_words(line.rest)
        self._volumes += [expand(word, self._variables) for word in words]

    def _set_shell(self, line: _Line) -> None:
        words = _json_words(line.rest)
        if not words:
            raise DockerfileError(line.text, "SHELL needs a JSON list")
        self._shell = words

    def _absolute(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self._workdir or "/", path))

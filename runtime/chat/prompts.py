"""Prompts: versioned Jinja2 templates in a package's `prompts` directory.

Invariants:
- A template's first line is `{# version: N #}`; what a prompt led to is recorded with name, version and hash.
- Every name must be given (StrictUndefined). Values are only ever values: nothing in them is read as template text.
- Prompts are plain text: nothing is escaped.
- Nothing is read before the first `render`.
"""

from __future__ import annotations

import hashlib
import re
from importlib import resources

import jinja2
import msgspec

from runtime.errors import UserError

_VERSION = re.compile(r"\A\{#\s*version:\s*(\d+)\s*#\}\n")


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt, ready to send."""

    text: str
    name: str
    version: int
    sha256: str
    """Of the template's source: tells two texts of the same version apart."""


class PromptLibrary:
    """The templates `<package>/prompts/<name>.j2`."""

    def __init__(self, package: str) -> None:
        self.package = package
        self._environment = jinja2.Environment(
            loader=jinja2.FunctionLoader(self._source),
            undefined=jinja2.StrictUndefined,
            autoescape=False,  # noqa: S701  (shell text in a prompt must stay as it is; no browser sees it)
            trim_blocks=True,
            lstrip_blocks=True,
        )

    def render(self, name: str, /, **values: object) -> Rendered:
        """Raises: UserError for a missing or unversioned template; jinja2.UndefinedError for a value not given."""
        source = self._source(name)
        return Rendered(
            text=self._environment.get_template(name).render(values).strip(),
            name=name,
            version=self._version(name, source),
            sha256=hashlib.sha256(source.encode()).hexdigest(),
        )

    def version(self, name: str) -> str:
        """`<version>:<hash>` of a template, without rendering it. Raises: UserError."""
        source = self._source(name)
        return f"{self._version(name, source)}:{hashlib.sha256(source.encode()).hexdigest()[:12]}"

    def _source(self, name: str) -> str:
        try:
            return (resources.files(self.package) / "prompts" / f"{name}.j2").read_text("utf-8")
        except FileNotFoundError as exc:
            raise UserError(
                f"prompt '{name}'", f"{self.package} has no such template", "Add prompts/<name>.j2"
            ) from exc

    def _version(self, name: str, source: str) -> int:
        found = _VERSION.match(source)
        if not found:
            raise UserError(f"prompt '{name}'", "the first line is no version", "Begin with {# version: 1 #}")
        return int(found[1])

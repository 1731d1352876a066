"""Makers of check sources: the few forms of outcome that families test, each a complete pytest function.

A made function names its path, compares with a literal that was computed when the piece was drawn, and fails by
AssertionError alone. Names derive from path and form, so they are unique within a task.
"""

from __future__ import annotations

import hashlib
import pprint
import re
from collections.abc import Mapping, Sequence

from sandbox.spec import AGENT_HOME


def function_name(path: str, form: str) -> str:
    """`test_cedar_reports_out_txt_<form>`."""
    stem = re.sub(r"[^a-z0-9]+", "_", path.removeprefix(AGENT_HOME).lower()).strip("_")
    return f"test_{stem}_{form}"


def check(path: str, form: str, *body: str) -> str:
    """A pytest function of these lines, in which `path` is the path."""
    lines = [f"path = {path!r}", *(line for part in body for line in part.splitlines())]
    return "\n".join([f"def {function_name(path, form)}() -> None:", *(f"    {line}" for line in lines)]) + "\n"


def _listed(values: Sequence[str]) -> str:
    return "expected: list[str] = [\n" + "".join(f"    {value!r},\n" for value in values) + "]"


def lines_are(path: str, lines: Sequence[str]) -> str:
    """The file holds exactly these lines, in this order."""
    return check(
        path, "lines", _listed(lines), "assert read_lines(path) == expected, f'{path} does not hold the expected lines'"
    )


def lines_are_in_any_order(path: str, lines: Sequence[str]) -> str:
    """The file holds exactly these lines, each as often as here."""
    verdict = "assert sorted(read_lines(path)) == expected, f'{path} does not hold the expected lines'"
    return check(path, "lines_in_any_order", _listed(sorted(lines)), verdict)


def json_is(path: str, value: object) -> str:
    """The file holds this JSON value; layout and order of keys are free."""
    verdict = "assert read_json(path) == expected, f'{path} does not hold the expected JSON value'"
    return check(path, "json", f"expected = {pprint.pformat(value, width=110, sort_dicts=False)}", verdict)


def bytes_are(path: str, data: bytes, form: str = "content") -> str:
    """The file holds exactly these bytes."""
    expected = f"expected = {hashlib.sha256(data).hexdigest()!r}  # {len(data)} bytes"
    found = "found = hashlib.sha256(read_bytes(path)).hexdigest()"
    return check(
        path,
        form,
        "import hashlib\n",
        expected,
        found,
        "assert found == expected, f'{path} does not hold the expected bytes'",
    )


def unchanged(path: str, data: bytes) -> str:
    """A guard: an input is still as it was."""
    return bytes_are(path, data, "unchanged")


def modes_are(directory: str, modes: Mapping[str, int], form: str = "modes") -> str:
    """Permission bits below the directory, by relative path (`.` is the directory itself)."""
    wanted = "".join(f"    {name!r}: {mode:#o},\n" for name, mode in sorted(modes.items()))
    loop = (
        "for name, mode in expected.items():\n"
        "    entry = Path(path, name)\n"
        "    assert os.path.lexists(entry), f'{entry} is missing'\n"
        "    found = stat.S_IMODE(os.lstat(entry).st_mode)\n"
        "    assert found == mode, f'{entry} has mode {found:o}, not {mode:o}'"
    )
    return check(directory, form, f"expected = {{\n{wanted}}}", loop)


def tree_is(directory: str, names: Sequence[str]) -> str:
    """The files and links below the directory are exactly these relative paths; empty directories do not count."""
    walk = (
        "assert os.path.isdir(path) and not os.path.islink(path), f'{path} is not a directory'\n"
        "found = [os.path.relpath(os.path.join(top, name), path) for top, folders, files in os.walk(path)\n"
        "         for name in files + [f for f in folders if os.path.islink(os.path.join(top, f))]]\n"
        "assert sorted(found) == expected, f'{path} holds {sorted(found)}'"
    )
    return check(directory, "tree", _listed(sorted(names)), walk)


def tree_holds(directory: str, contents: Mapping[str, bytes], form: str = "contents") -> str:
    """Regular files below the directory have these bytes, by relative path; others may be there too (see `tree_is`)."""
    wanted = _digests(contents)
    loop = (
        "for name, digest in expected.items():\n"
        "    found = hashlib.sha256(read_bytes(os.path.join(path, name))).hexdigest()\n"
        "    assert found == digest, f'{path}/{name} does not hold the expected bytes'"
    )
    return check(directory, form, "import hashlib\n", wanted, loop)


def _digests(contents: Mapping[str, bytes]) -> str:
    pairs = [(name, hashlib.sha256(data).hexdigest()) for name, data in sorted(contents.items())]
    return "expected = {\n" + "".join(f"    {name!r}: {digest!r},\n" for name, digest in pairs) + "}"


def absent(path: str) -> str:
    """Nothing has this name."""
    return check(path, "absent", "assert not os.path.lexists(path), f'{path} should not exist'")


def present(directory: str, names: Sequence[str]) -> str:
    """Regular files with these relative names exist: the usual initial check."""
    loop = "for name in expected:\n    assert Path(path, name).is_file(), f'{name} is missing'"
    return check(directory, "inputs_present", _listed(names), loop)


def link_is(path: str, target: str) -> str:
    """A symbolic link with exactly this target text."""
    linked = "assert os.path.islink(path), f'{path} is not a symbolic link'"
    return check(path, "link", linked, f"assert os.readlink(path) == {target!r}, f'{{path}} points elsewhere'")


def target_is(path: str, target: str) -> str:
    """A symbolic link, relative or absolute, that leads to this absolute path."""
    linked = "assert os.path.islink(path), f'{path} is not a symbolic link'"
    return check(path, "target", linked, f"assert os.path.realpath(path) == {target!r}, f'{{path}} leads elsewhere'")


def archive_holds(path: str, members: Mapping[str, bytes]) -> str:
    """A tar archive, compressed or not, whose regular files are exactly these; a leading `./` in names is fine."""
    read = (
        "found = {}\n"
        "try:\n"
        "    with tarfile.open(fileobj=io.BytesIO(read_bytes(path))) as archive:\n"
        "        for member in archive:\n"
        "            content = archive.extractfile(member) if member.isreg() and member.size <= _LIMIT else None\n"
        "            if content is not None:\n"
        "                found[member.name.removeprefix('./')] = hashlib.sha256(content.read()).hexdigest()\n"
        "except AssertionError:\n"
        "    raise\n"
        "except Exception as error:\n"
        "    raise AssertionError(f'{path} is not a tar archive: {error}') from None"
    )
    imports = "import hashlib\nimport io\nimport tarfile\n"
    verdict = "assert found == expected, f'{path} holds {sorted(found)}'"
    return check(path, "members", imports, _digests(members), read, verdict)


def starts_with(path: str, magic: bytes, form: str) -> str:
    """The file begins with these bytes: what kind of compression it has."""
    return check(path, form, f"assert read_bytes(path).startswith({magic!r}), f'{{path}} is not {form} data'")

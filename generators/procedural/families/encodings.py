"""Bytes and what they stand for: character sets, line ends, base64, hexadecimal."""

from __future__ import annotations

import base64
import random
from collections.abc import Sequence

from generators.messages import ErrorType
from generators.procedural import words
from generators.procedural.checks import bytes_are, present, unchanged
from generators.procedural.edits import beside, botched, edit, unsaved
from generators.procedural.family import Piece, Place
from generators.procedural.reports import misplaced, only_shown, report
from generators.procedural.steps import Step, assemble, slip
from sandbox.spec import File

name = "encodings"
category = "text processing"
tools: tuple[str, ...] = ("iconv", "sed", "base64", "xxd", "grep")
depths = range(1, 6)

_ACCENTED = "café naïve Zürich Málaga señor Köln façade Århus crème straße mañana Tromsø garçon Évora fête Łódź".split()


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    stems = words.distinct(rng, words.STEMS, depth)
    jobs = rng.sample((_latin, _wide, _line_ends, _base64, _hexadecimal, _accented_lines), depth)
    drawn = [job(rng, place, f"{stem}-{rng.choice(words.CITIES)}") for job, stem in zip(jobs, stems, strict=True)]
    files = [file for file, _ in drawn]
    kept = [file for (file, _), job in zip(drawn, jobs, strict=True) if job is not _line_ends]
    return assemble(
        family=name,
        title="Convert encodings",
        place=place,
        openings=(
            f"Files in {place.directory} came in the wrong encoding. Results have exactly the bytes that the conversion gives, and inputs stay unless it says `in place`.",
            f"I got files in {place.directory} that need converting, byte for byte. Keep the originals where I don't say that a file is to be changed in place.",
            f"There are encodings to straighten out in {place.directory}. What isn't to be changed in place should stay as it is.",
        ),
        steps=[step for _, step in drawn],
        files=files,
        initial_checks=(present(place.directory, [file.path.removeprefix(place.directory + "/") for file in files]),),
        guards=tuple(unchanged(file.path, file.data) for file in kept),
    )


def _prose(rng: random.Random, lines: int, *, latin: bool = True) -> str:
    """Lines that all have a word with an accent in them."""
    pool = [word for word in _ACCENTED if not latin or word != "Łódź"]
    return "".join(f"{words.phrase(rng, 2, 4)} {rng.choice(pool)} {words.token(rng, 4)}\n" for _ in range(lines))


def _file(place: Place, name: str, data: bytes) -> File:
    return File(path=f"{place.directory}/{name}", data=data, owner="agent")


def _converted(
    place: Place,
    file: str,
    data: bytes,
    command: str,
    *,
    says: tuple[str, str, str],
    thought: str,
    slips: Sequence[tuple[ErrorType, str, str]],
) -> Step:
    """A step in which the output of `command` becomes `file`, whose bytes are known."""
    full = f"{command} > {file}"
    return Step(
        says=says,
        thought=thought,
        command=full,
        checks=(bytes_are(f"{place.directory}/{file}", data),),
        mistakes=(
            *(slip(kind, f"{bad} > {file}", why) for kind, bad, why in slips),
            misplaced(full, file),
            only_shown(full, file),
        ),
    )


def _latin(rng: random.Random, place: Place, stem: str) -> tuple[File, Step]:
    text = _prose(rng, rng.randint(4, 8))
    source, target = _file(place, f"{stem}.latin1", text.encode("latin-1")), f"{place.directory}/{stem}.utf8"
    file = f"{stem}.latin1"
    return source, _converted(
        place,
        f"{stem}.utf8",
        text.encode(),
        f"iconv -f ISO-8859-1 -t UTF-8 {file}",
        says=(
            f"Convert {source.path} from ISO-8859-1 to UTF-8 and write the result to {target}.",
            f"Save {source.path}, which is in Latin-1 (ISO-8859-1), as UTF-8 in {target}.",
            f"The text in {source.path} is Latin-1 (ISO-8859-1); I need it in UTF-8 as {target}.",
        ),
        thought="iconv from ISO-8859-1 to UTF-8.",
        slips=(
            ("command_error", f"iconv -f UTF-8 -t ISO-8859-1 {file}", "The two options take the character sets."),
            ("analysis_error", f"iconv -f CP437 -t UTF-8 {file}", "Old texts come from DOS."),
        ),
    )


def _wide(rng: random.Random, place: Place, stem: str) -> tuple[File, Step]:
    text = _prose(rng, rng.randint(4, 8), latin=False)
    little = rng.random() < 0.5
    order = "le" if little else "be"
    mark = b"\xff\xfe" if little else b"\xfe\xff"
    file = f"{stem}.utf16"
    source, target = _file(place, file, mark + text.encode(f"utf-16-{order}")), f"{place.directory}/{stem}.txt"
    return source, _converted(
        place,
        f"{stem}.txt",
        text.encode(),
        f"iconv -f UTF-16 -t UTF-8 {file}",
        says=(
            f"Convert {source.path} from UTF-16 (it begins with a byte order mark) to UTF-8 without any mark, into {target}.",
            f"Turn the UTF-16 text {source.path} into UTF-8, saved as {target}; no byte order mark in the result.",
            f"I can't read {source.path}, it is UTF-16 with a byte order mark. Please give me {target} in UTF-8, and without a mark.",
        ),
        thought="With UTF-16 as the source iconv reads the mark and drops it.",
        slips=(
            (
                "requirement_violation",
                f"iconv -f UTF-16{order.upper()} -t UTF-8 {file}",
                "I name the byte order to be exact.",
            ),
            (
                "command_error",
                f"iconv -f UTF-16{'BE' if little else 'LE'} -t UTF-8 {file}",
                "One of the two byte orders has to be named.",
            ),
            ("analysis_error", f"tr -d '\\000' < {file}", "Every other byte is zero; without them it is text."),
        ),
    )


def _line_ends(rng: random.Random, place: Place, stem: str) -> tuple[File, Step]:
    text = "".join(f"{words.phrase(rng)} {words.token(rng, 4)}\n" for _ in range(rng.randint(5, 9)))
    file = f"{stem}.csv"
    source = _file(place, file, text.replace("\n", "\r\n").encode())
    right = "'s/\\r$//'"
    return source, Step(
        says=(
            f"Change the line ends of {source.path} from CRLF to LF, in place.",
            f"Rewrite {source.path} in place with Unix line ends; it has CRLF now.",
            f"The lines of {source.path} end in CRLF. They should end in LF alone, in the same file, in place.",
        ),
        thought="A carriage return at the end of each line has to go.",
        command=edit(file, right),
        checks=(bytes_are(source.path, text.encode()),),
        mistakes=(
            botched("command_error", file, "'s/$/\\r/'", "\\r stands for the line end."),
            botched(
                "analysis_error",
                file,
                "':a;N;$!ba;s/\\r\\n/ /g'",
                "Line ends are the pairs of both characters, so I take out the pairs.",
            ),
            beside(file, right),
            unsaved(file, right),
        ),
    )


def _base64(rng: random.Random, place: Place, stem: str) -> tuple[File, Step]:
    data = rng.randbytes(rng.randint(120, 300))
    file = f"{stem}.b64"
    source, target = _file(place, file, base64.encodebytes(data)), f"{place.directory}/{stem}.bin"
    return source, _converted(
        place,
        f"{stem}.bin",
        data,
        f"base64 -d {file}",
        says=(
            f"Decode the base64 text in {source.path} to {target}.",
            f"Turn {source.path} (base64) back into bytes, in {target}.",
            f"What is in {source.path} is base64; the bytes behind it belong in {target}.",
        ),
        thought="base64 -d, straight into the file.",
        slips=(
            ("command_error", f"base64 {file}", "base64 handles base64."),
            ("analysis_error", f"head -1 {file} | base64 -d", "The code is on one line."),
        ),
    )


def _hexadecimal(rng: random.Random, place: Place, stem: str) -> tuple[File, Step]:
    data = rng.randbytes(rng.randint(90, 200))
    file = f"{stem}.hex"
    digits = data.hex()
    lines = [digits[start : start + 60] for start in range(0, len(digits), 60)]
    source, target = _file(place, file, ("\n".join(lines) + "\n").encode()), f"{place.directory}/{stem}.raw"
    return source, _converted(
        place,
        f"{stem}.raw",
        data,
        f"xxd -r -p {file}",
        says=(
            f"Turn the hexadecimal digits in {source.path} (two per byte, nothing else) into bytes in {target}.",
            f"Convert {source.path}, plain hex digits on several lines, to the bytes they mean, in {target}.",
            f"There are bytes written as plain hex digits in {source.path}. I need them as real bytes in {target}.",
        ),
        thought="xxd -r goes back to bytes, -p since it is digits without offsets.",
        slips=(
            ("command_error", f"xxd -r {file}", "xxd -r reverses a dump."),
            ("analysis_error", f"xxd -p {file}", "-p is the plain form."),
        ),
    )


def _accented_lines(rng: random.Random, place: Place, stem: str) -> tuple[File, Step]:
    plain = [f"{words.phrase(rng, 3, 5)}" for _ in range(rng.randint(9, 14))]
    hits = sorted(rng.sample(range(len(plain)), rng.randint(3, 5)))
    lines = [f"{line} {rng.choice(_ACCENTED)}" if number in hits else line for number, line in enumerate(plain)]
    file = f"{stem}.md"
    source, target = _file(place, file, ("\n".join(lines) + "\n").encode()), f"{place.directory}/{stem}.lines"
    expected = [str(number) for number, line in enumerate(lines, 1) if not line.isascii()]
    return source, report(
        place,
        f"{stem}.lines",
        expected,
        f"LC_ALL=C.UTF-8 grep -nP '[^\\x00-\\x7F]' {file} | cut -d: -f1",
        says=(
            f"Write the numbers of the lines of {source.path} (UTF-8) that hold any character outside ASCII to {target}, one number a line, ascending.",
            f"Find the lines in {source.path} with characters that are not ASCII and list their line numbers, ascending and one per line, in {target}.",
            f"Which lines of {source.path} aren't pure ASCII? Only their numbers, from the top down, one on each line of {target}.",
        ),
        thought="grep for any byte range outside ASCII, keep the numbers.",
        slips=(
            (
                "requirement_violation",
                f"LC_ALL=C.UTF-8 grep -nP '[^\\x00-\\x7F]' {file}",
                "grep -n shows the numbers with their lines.",
            ),
            (
                "command_error",
                f"LC_ALL=C.UTF-8 grep -n '[^a-z]' {file} | cut -d: -f1",
                "Everything that is no plain letter is special.",
            ),
            (
                "analysis_error",
                f"LC_ALL=C.UTF-8 grep -cP '[^\\x00-\\x7F]' {file}",
                "The number of such lines is wanted.",
            ),
        ),
    )

"""Basics about the lines of a file: append, count, first and last lines, join, replace a word, sort."""

from __future__ import annotations

from generators.procedural.checks import check
from generators.procedural.families.basics import Basic, Scene, confused
from generators.procedural.steps import Step, slip

_CATEGORY = "text processing"


def _append(scene: Scene) -> Step:
    path, word = scene.file(), scene.name()
    return Step(
        says=(
            f"Add one line at the end of {path} that consists of the word {word}.",
            f"The last line of {path} should be a new one that says {word}; the others stay.",
            f"Append {word} to {path}.",
        ),
        thought="Append, never overwrite.",
        command=f"echo {word} >> {path}",
        checks=(scene.holds(path, scene.files[path] + f"{word}\n"),),
        mistakes=(
            slip("command_error", f"sed -i '1i {word}' {path}", "A new line goes in.", f"sed -i 1d {path}"),
            slip("analysis_error", f"echo -n {word} >> {path}", "The word goes to the end.", f"sed -i '$d' {path}"),
            slip("requirement_violation", f"echo {word} > {path}.new", "The original is kept.", f"rm {path}.new"),
        ),
    )


def _count(scene: Scene) -> Step:
    source, target = scene.file(), scene.path()
    number = scene.files[source].count("\n")
    verdict = f"assert read_text(path).split()[:1] == ['{number}'], f'{{path}} does not begin with the number of lines'"
    return Step(
        says=(
            f"Count the lines of {source} and write the number to {target}.",
            f"How many lines has {source}? The number should be in {target}.",
            f"Count {source} into {target}.",
        ),
        thought="wc counts lines.",
        command=f"wc -l < {source} > {target}",
        checks=(check(target, "number", verdict), scene.keeps(source)),
        mistakes=confused(source, target, "wc"),
    )


def _first(scene: Scene) -> Step:
    source, target, number = scene.file(), scene.path(), scene.rng.randint(2, 3)
    lines = scene.files[source].splitlines(keepends=True)
    return Step(
        says=(
            f"Write the first {number} lines of {source} to the new file {target}.",
            f"I only need the top {number} lines of {source}, in a file {target}.",
            f"First {number} lines of {source} to {target}.",
        ),
        thought="head gives the first lines.",
        command=f"head -n {number} {source} > {target}",
        checks=(scene.holds(target, "".join(lines[:number])), scene.keeps(source)),
        mistakes=confused(source, target, "head"),
    )


def _last(scene: Scene) -> Step:
    source, target, number = scene.file(), scene.path(), scene.rng.randint(2, 3)
    lines = scene.files[source].splitlines(keepends=True)
    return Step(
        says=(
            f"Write the last {number} lines of {source} to the new file {target}.",
            f"I only need the bottom {number} lines of {source}, in a file {target}.",
            f"Last {number} lines of {source} to {target}.",
        ),
        thought="tail gives the last lines.",
        command=f"tail -n {number} {source} > {target}",
        checks=(scene.holds(target, "".join(lines[-number:])), scene.keeps(source)),
        mistakes=confused(source, target, "tail"),
    )


def _join(scene: Scene) -> Step:
    first, second, target = scene.file(), scene.file(), scene.path()
    return Step(
        says=(
            f"Write {first} followed by {second} to the new file {target}.",
            f"The file {target} should hold all of {first} and then all of {second}.",
            f"Join {first} and {second} to {target}.",
        ),
        thought="cat joins in the order given.",
        command=f"cat {first} {second} > {target}",
        checks=(scene.holds(target, scene.files[first] + scene.files[second]), scene.keeps(first), scene.keeps(second)),
        mistakes=(
            slip("analysis_error", f"cat {second} {first} > {target}", "Both are in it."),
            slip("requirement_violation", f"cp {first} {target}", "The first one is the beginning."),
            slip("command_error", f"sort {first} {second} > {target}", "sort reads both."),
        ),
    )


def _replace(scene: Scene) -> Step:
    old, new = scene.name(), scene.name()
    lines = scene.lines()
    lines[0], lines[2] = f"{lines[0]} {old}", f"{lines[2]} {old}"
    path = scene.file(lines)
    return Step(
        says=(
            f"In the file {path}, replace the word {old} by {new} wherever it stands.",
            f"Every {old} in {path} should read {new}.",
            f"Replace {old} by {new} in {path}.",
        ),
        thought="sed replaces in place.",
        command=f"sed -i s/{old}/{new}/ {path}",
        checks=(scene.holds(path, scene.files[path].replace(old, new)),),
        mistakes=(
            slip("analysis_error", f"sed -i 2s/{old}/{new}/ {path}", "The word stands in the second line."),
            slip("command_error", f"sed -i 1s/{old}/{new}/ {path}", "The word is found in the first line."),
            slip("requirement_violation", f"sed s/{old}/{new}/ {path} > {path}.new", "As asked.", f"rm {path}.new"),
        ),
    )


def _sort(scene: Scene) -> Step:
    source, target = scene.file(), scene.path()
    ordered = sorted(scene.files[source].splitlines(keepends=True))
    return Step(
        says=(
            f"Write the lines of {source} in alphabetical order to the new file {target}.",
            f"I would like the lines of {source} sorted, in a file {target}.",
            f"Sort {source} into {target}.",
        ),
        thought="sort orders lines.",
        command=f"sort {source} > {target}",
        checks=(scene.holds(target, "".join(ordered)), scene.keeps(source)),
        mistakes=confused(source, target, "sort"),
    )


APPEND = Basic(name="basics-append", category=_CATEGORY, tools=("echo",), title="Append a line", job=_append)
COUNT = Basic(name="basics-count", category=_CATEGORY, tools=("wc",), title="Count lines", job=_count)
FIRST = Basic(name="basics-first", category=_CATEGORY, tools=("head",), title="Take the first lines", job=_first)
JOIN = Basic(name="basics-join", category=_CATEGORY, tools=("cat",), title="Join two files", job=_join)
LAST = Basic(name="basics-last", category=_CATEGORY, tools=("tail",), title="Take the last lines", job=_last)
REPLACE = Basic(name="basics-replace", category=_CATEGORY, tools=("sed",), title="Replace a word", job=_replace)
SORT = Basic(name="basics-sort", category=_CATEGORY, tools=("sort",), title="Sort lines", job=_sort)

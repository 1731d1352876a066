"""A small handbook in Markdown: contents, broken links, open tasks, code blocks, words by chapter."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from generators.procedural import words
from generators.procedural.answers import Answers
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, text_file

name = "markdown-docs"
category = "documentation"
tools: tuple[str, ...] = ("awk", "bash", "grep", "sed", "sort")
depths = range(1, 6)


@dataclass(frozen=True)
class Scene:
    """Chapters by file name, each a list of lines; the first chapter is the one that questions about one file go to."""

    at: str
    chapters: dict[str, list[str]]

    @property
    def main(self) -> str:
        return next(iter(self.chapters))

    @property
    def path(self) -> str:
        return f"{self.at}/{self.main}"

    def prose(self) -> list[str]:
        """The main chapter's lines outside code blocks, fences left out."""
        parts = "\n".join(self.chapters[self.main]).split("\n```")
        return [line for part in parts[::2] for line in part.split("\n")[bool(part != parts[0]) :]]


def _chapter(rng: random.Random, links: list[str]) -> list[str]:
    lines = [f"# {words.phrase(rng, 2, 3).title()}", ""]
    shells = rng.sample(("bash", "bash", rng.choice(("python", "sql", "yaml"))), 3)
    for section in range(rng.randint(4, 5)):
        lines += [f"## {words.phrase(rng, 2, 3).title()}", "", words.phrase(rng, 5, 9).capitalize() + "."]
        lines += [f"See [{words.phrase(rng, 1, 2)}]({link}) first." for link in links[2 * section : 2 * section + 2]]
        lines += [f"- [{rng.choice(' x')}] {words.phrase(rng, 2, 4)}" for _ in range(rng.randint(1, 3))]
        if section < 3:
            lines += [
                "",
                f"```{shells[section]}",
                f"# {words.phrase(rng, 2, 3)}",
                f"run --{rng.choice(words.TERMS)} {words.token(rng)}",
                "- [ ] no task",
                "```",
            ]
        if section in {1, 2}:
            lines += [
                "",
                f"### {words.phrase(rng, 2, 3).title()}",
                "",
                words.phrase(rng).capitalize() + ".",
                f"- [ ] {words.phrase(rng, 2, 4)}",
                "- [x] " + words.phrase(rng, 2, 4),
            ]
        lines.append("")
    return lines[:-1]


def _scene(rng: random.Random, place: Place) -> Scene:
    files = [f"{stem}-{rng.choice(words.TERMS)}.md" for stem in words.distinct(rng, words.STEMS, 4)]
    gone = [f"{stem}-{rng.choice(words.PEOPLE)}.md" for stem in words.distinct(rng, words.STEMS, 3)]
    targets = [*files[1:], *gone, f"https://{rng.choice(words.PROJECTS)}.example.org/{gone[0]}", files[0]]
    rng.shuffle(targets)
    return Scene(
        place.directory,
        {file: _chapter(rng, targets if file == files[0] else rng.sample(targets, 4)) for file in files},
    )


_CODE = "/^```/ {c = !c; next} c {next}"


def _contents(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    lines = []
    for line in scene.prose():
        if match := re.match(r"(##+) (.*)", line):
            anchor = match[2].lower().replace(" ", "-")
            lines.append(f"{'  ' * (len(match[1]) - 2)}- [{match[2]}](#{anchor})")
    program = f'{_CODE} /^##+ / {{d = length($1) - 2; sub(/^#+ /, ""); a = tolower($0); gsub(/ /, "-", a); printf "%*s- [%s](#%s)\\n", 2 * d, "", $0, a}}'
    return answers.step(
        out,
        lines,
        f"awk '{program}' {scene.main}",
        says=(
            f"Write a table of contents for {scene.path} to {out}: `- [Heading](#anchor)` for each heading of level 2 and 3 in order, level 3 indented by two blanks; the anchor is the heading in lower case with `-` for each blank. Lines in code blocks (between lines that begin with three backticks) are no headings.",
            f"{scene.path} needs a table of contents, to be saved as {out}: for each heading of level 2 or 3, as they come, `- [Heading](#anchor)`, those of level 3 two blanks to the right. Anchors are lower case with `-` instead of blanks; ignore what is in blocks fenced by three backticks.",
            f"Please make the contents list of {scene.path} in {out}. One line `- [Heading](#anchor)` a heading (levels 2 and 3, in order, level 3 two blanks in); to get the anchor, lower-case the heading and turn blanks into `-`. Fenced code (three backticks) has no headings.",
        ),
        thought="Skip code blocks, then level, text and anchor of each heading.",
        slips=(
            (
                "analysis_error",
                f"awk '{program.replace('/^##+ /', '/^## /')}' {scene.main}",
                "A table of contents lists the sections.",
            ),
            (
                "requirement_violation",
                f"awk '{program.replace('a = tolower($0)', 'a = $0')}' {scene.main}",
                "The anchor is the heading with dashes.",
            ),
        ),
    )


def _links(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    found = {target for lines in scene.chapters.values() for target in re.findall(r"\]\(([^)#]+)\)", "\n".join(lines))}
    missing = sorted(t for t in found if not t.startswith("https://") and t not in scene.chapters)
    collect = "grep -ohE '\\]\\([^)#]+\\)' *.md | sed 's/^](//; s/)$//'"
    return answers.step(
        out,
        missing,
        f'{collect} | grep -v \'^https:\' | sort -u | while read -r f; do [ -e "$f" ] || echo "$f"; done',
        says=(
            f"Write the link targets in the .md files of {scene.at} that are neither https addresses nor existing files in that directory to {out}, each once, one per line, sorted by byte order.",
            f"Which links `[text](file)` in the .md files of {scene.at} lead to files that aren't there? Web addresses (https) don't matter. Each target once, sorted plainly, one a line, in {out}.",
            f"Find the dead links in the .md files of {scene.at}: link targets that are no https addresses and no files in that directory. No repeats, byte order, one a line, in {out}.",
        ),
        thought="All targets once, without web addresses, and those that don't exist.",
        slips=(
            (
                "analysis_error",
                f'{collect} | sort -u | while read -r f; do [ -e "$f" ] || echo "$f"; done',
                "What doesn't exist here is missing.",
            ),
            (
                "requirement_violation",
                f'{collect.replace("-ohE", "-oE")} | grep -v \'^https:\' | sort -u | while read -r f; do [ -e "$f" ] || echo "$f"; done',
                "grep says where each link is, which helps.",
            ),
        ),
    )


def _tasks(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    found = [line.removeprefix("- [ ] ") for line in scene.prose() if line.startswith("- [ ] ")]
    program = _CODE + " /^- \\[ \\] / {print substr($0, 7)}"
    return answers.step(
        out,
        found,
        f"awk '{program}' {scene.main}",
        says=(
            f"Write the texts of all open tasks (`- [ ] TEXT`) in {scene.path} to {out}, in order, one per line, without the box; lines inside blocks fenced by three backticks are not tasks.",
            f"What is still to do in {scene.path}? The text behind each `- [ ] `, as they come, one a line, in {out}; code blocks (fenced by three backticks) don't count.",
            f"List the unticked boxes of {scene.path} in {out}, just the text after `- [ ] `, in order, one a line. Whatever is fenced by three backticks is an example and no task.",
        ),
        thought="Outside code, lines with an empty box, box cut off.",
        slips=(
            (
                "analysis_error",
                f"sed -n 's/^- \\[ \\] //p' {scene.main}",
                "Open tasks are the lines with an empty box.",
            ),
            (
                "requirement_violation",
                f"awk '{program.replace('substr($0, 7)', '$0')}' {scene.main}",
                "The line is the task.",
            ),
        ),
    )


def _code(answers: Answers, scene: Scene) -> Step:
    out, language = answers.fresh(".sh"), "bash"
    lines, inside = [], False
    for line in scene.chapters[scene.main]:
        if line.startswith("```"):
            inside = line == f"```{language}"
        elif inside:
            lines.append(line)
    right = f"sed -n '/^```{language}$/,/^```$/{{/^```/!p}}'"
    return answers.step(
        out,
        lines,
        f"{right} {scene.main}",
        says=(
            f"Write the lines of all {language} code blocks in {scene.path} (from a line ```{language} to the next line ```) to {out} in their order, without the fences.",
            f"Extract the {language} code of {scene.path}, everything between ```{language} and the closing ```, fences left out, one block after the other, into {out}.",
            f"{out} should hold the contents of the {language} blocks in {scene.path}, in order and without the lines with the backticks.",
        ),
        thought="A range from the opening fence to the closing one, without the fences.",
        slips=(
            ("requirement_violation", f"sed -n '/^```{language}$/,/^```$/p' {scene.main}", "The blocks as they stand."),
            ("analysis_error", f"awk '/^```/ {{c = !c; next}} c' {scene.main}", "Code is what stands between fences."),
        ),
    )


def _count(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    rows = sorted(
        (-sum(line.startswith("## ") for line in lines), -sum("](" in line for line in lines), file)
        for file, lines in scene.chapters.items()
    )
    dotted = 'print "./" f'
    program = "FNR == 1 {n[FILENAME] = 0} /^## / {n[FILENAME]++} /\\]\\(/ {l[FILENAME]++} END {for (f in n) print f, n[f], l[f] + 0}"
    return answers.step(
        out,
        [f"{file} {-sections} {-links}" for sections, links, file in rows],
        f"awk '{program}' *.md | sort -k2,2nr -k3,3nr -k1,1",
        says=(
            f"Write `FILE SECTIONS LINKS` for each .md file in {scene.at} to {out}: bare file name, number of lines that begin with `## `, number of lines with a link `[...](...)`; most sections first, then most links, then by name.",
            f"Count for each .md file of {scene.at} the lines beginning with `## ` and the lines that hold a link `[...](...)`, and write `FILE SECTIONS LINKS` with the bare name to {out}, sorted by sections, then links (both largest first), then name.",
            f"An overview of the .md files in {scene.at}, please, in {out}: `FILE SECTIONS LINKS` (name without directory; lines starting with `## `; lines with a `[...](...)` link). Most sections on top, on a draw most links, then name.",
        ),
        thought="Two counters by file, and a sort with three keys.",
        slips=(
            (
                "analysis_error",
                f"awk '{program.replace('/^## /', '/^#/')}' *.md | sort -k2,2nr -k3,3nr -k1,1",
                "Headings begin with a hash.",
            ),
            (
                "requirement_violation",
                f"awk '{program.replace('print f', dotted)}' *.md | sort -k2,2nr -k3,3nr -k1,1",
                "A path with ./ is a safe way to name a file.",
            ),
        ),
    )


_STEPS = (_contents, _links, _tasks, _code, _count)


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    """Independent questions to one handbook."""
    scene, answers = _scene(rng, place), Answers(rng=rng, place=place)
    return answers.piece(
        family=name,
        title="Tidy up documentation",
        openings=(
            f"The .md files in {scene.at} are the chapters of a handbook.",
            f"Our handbook lives in {scene.at}, one Markdown file a chapter.",
            f"I'm tidying the handbook in {scene.at} (Markdown).",
        ),
        steps=[make(answers, scene) for make in rng.sample(_STEPS, depth)],
        files=[
            text_file(place, file, "".join(f"{line}\n" for line in lines)) for file, lines in scene.chapters.items()
        ],
    )

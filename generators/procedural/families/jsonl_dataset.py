"""Labelled texts as JSON Lines, made ready for training: counts, repeats, splits, tables."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass

from generators.procedural import words
from generators.procedural.answers import Answers
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, text_file

name = "jsonl-dataset"
category = "data set preparation"
tools: tuple[str, ...] = ("awk", "jq", "sort")
depths = range(1, 6)

_WORDS = 'split(" ") | length'


@dataclass(frozen=True)
class Text:
    """One record; some labels are missing."""

    id: int
    text: str
    label: str | None
    source: str

    def __str__(self) -> str:
        return json.dumps(
            {"id": self.id, "text": self.text, "label": self.label, "source": self.source}, separators=(",", ":")
        )


@dataclass(frozen=True)
class Scene:
    """Records in file order; some texts come twice, not one behind the other."""

    at: str
    file: str
    records: list[Text]

    @property
    def path(self) -> str:
        return f"{self.at}/{self.file}"


def _scene(rng: random.Random, place: Place) -> Scene:
    labels = words.distinct(rng, words.TEAMS, 3)
    sources = words.distinct(rng, words.SERVICES, 3)
    texts = list(dict.fromkeys(words.phrase(rng, 3, 9) for _ in range(rng.randint(26, 36))))
    half = len(texts) // 2
    for again in rng.sample(texts[:half], 5):
        texts.insert(rng.randint(half + 1, len(texts) - 1), again)
    ids = rng.sample(range(100, 999), len(texts) - 2)
    base = 10 * rng.randint(100, 900)
    records = [
        Text(number, text, rng.choice((*labels, *labels, None)), rng.choice(sources))
        for number, text in zip([base, *ids, base + 5], texts, strict=True)
    ]
    records[1] = Text(records[1].id, records[1].text, None, sources[0])
    records[2:5] = [
        Text(r.id, r.text, label, sources[n]) for n, (r, label) in enumerate(zip(records[2:5], labels, strict=True))
    ]
    return Scene(place.directory, f"{rng.choice(words.PROJECTS)}-{rng.choice(words.STEMS)}.jsonl", records)


def _labels(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    ranked = sorted(Counter(r.label for r in scene.records if r.label).items(), key=lambda item: (-item[1], item[0]))
    tail = "sort | uniq -c | sort -k1,1nr -k2 | awk '{print $2, $1}'"
    return answers.step(
        out,
        [f"{label} {count}" for label, count in ranked],
        f"jq -r '.label // empty' {scene.file} | {tail}",
        says=(
            f"Write `LABEL COUNT` for each label in {scene.path} to {out}, most records first, ties by label; records whose label is null are not counted.",
            f"How are the labels in {scene.path} distributed? `LABEL COUNT` in {out}, the most frequent on top, equal counts by label, nulls left out.",
            f"Count the labels of {scene.path} into {out}, lines `LABEL COUNT`, largest first and alphabetical on a draw. Null is no label.",
        ),
        thought="jq prints the labels that are there, the rest is counting.",
        slips=(
            ("analysis_error", f"jq -r .label {scene.file} | {tail}", "Every record has a label field."),
            (
                "requirement_violation",
                f"jq -r '.label // empty' {scene.file} | sort | uniq -c",
                "uniq -c gives label and count.",
            ),
        ),
    )


def _unique(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh(".jsonl")
    first: dict[str, Text] = {}
    for record in scene.records:
        first.setdefault(record.text, record)
    program = (
        "reduce inputs as $r ({s: {}, k: []}; if .s[$r.text] then . else .s[$r.text] = true | .k += [$r] end) | .k[]"
    )
    return answers.step(
        out,
        [str(record) for record in first.values()],
        f"jq -nc '{program}' {scene.file}",
        says=(
            f"Write {out}: the records of {scene.path} without repeats, keeping only the first record of each text, in the order of the file, one compact JSON object per line (keys in their order, no blanks between).",
            f"Drop the records of {scene.path} whose text came before (the id may differ) and write the rest in order to {out}, as compact JSON lines like the input's.",
            f"Some texts in {scene.path} are there twice under different ids. I want each once, its first record, same order, same compact one-line JSON, in {out}.",
        ),
        thought="A set of texts seen so far decides what stays.",
        slips=(
            ("command_error", f"uniq {scene.file}", "uniq drops what is repeated."),
            (
                "requirement_violation",
                f"jq -sc 'unique_by(.text)[]' {scene.file}",
                "unique_by keeps one record for each text.",
            ),
            ("analysis_error", f"awk '!seen[$0]++' {scene.file}", "Lines that came before are dropped."),
        ),
    )


def _split(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh(".jsonl")
    return answers.step(
        out,
        [str(record) for record in scene.records if record.id % 5 == 0],
        f"jq -c 'select(.id % 5 == 0)' {scene.file}",
        says=(
            f"Write the test part of {scene.path} to {out}: all records whose id is divisible by 5, in their order, as compact JSON lines with the keys in their order.",
            f"The records of {scene.path} with an id that 5 divides are our test part. Put them into {out}, same order, in the same compact one-line form.",
            f"For testing we set aside every record of {scene.path} whose id can be divided by 5 (labelled or not). Same compact lines, same order, in {out}, please.",
        ),
        thought="The remainder by five selects the records.",
        slips=(
            (
                "analysis_error",
                f"jq -c . {scene.file} | awk 'NR % 5 == 0'",
                "Every fifth record goes to the test part.",
            ),
            ("requirement_violation", f"jq 'select(.id % 5 == 0)' {scene.file}", "jq prints the selected records."),
        ),
    )


def _table(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh(".tsv")
    rows = sorted((r for r in scene.records if r.label), key=lambda r: r.id)
    program = "map(select(.label)) | sort_by(.id)[] | [.id, .label, .text] | @tsv"
    return answers.step(
        out,
        [f"{r.id}\t{r.label}\t{r.text}" for r in rows],
        f"jq -rs '{program}' {scene.file}",
        says=(
            f"Write the labelled records of {scene.path} (label not null) to {out} as lines of id, label and text with tabs between, by id ascending, no header.",
            f"Turn {scene.path} into a tab-separated table {out}: id, label, text; only records with a label, ordered by id as a number, no header line.",
            f"Make {out} from {scene.path}: tabs between id, label and text, lowest id first, unlabelled (null) ones left out, no heading.",
        ),
        thought="Slurp, select, sort by the number and print as TSV.",
        slips=(
            (
                "requirement_violation",
                f"jq -rs '{program.replace('map(select(.label)) | ', '')}' {scene.file}",
                "All records go into the table.",
            ),
            ("command_error", f"jq -s '{program}' {scene.file}", "@tsv makes the tabs."),
        ),
    )


def _lengths(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    totals: Counter[str] = Counter()
    for record in scene.records:
        totals[record.source] += len(record.text.split())
    program = ".[] | [.source, (.text | " + _WORDS + ")] | @tsv"
    tail = "awk '{n[$1] += $2} END {for (s in n) print s, n[s]}' | sort"
    return answers.step(
        out,
        [f"{source} {count}" for source, count in sorted(totals.items())],
        f"jq -rs '{program}' {scene.file} | {tail}",
        says=(
            f"Count the words of all texts in {scene.path} by source (words are separated by one blank) and write `SOURCE WORDS` to {out}, sorted by source.",
            f"How many words of text does each source in {scene.path} contribute? A word ends at a blank. `SOURCE WORDS`, by source, in {out}.",
            f"For each source in {scene.path} I need the number of words in its texts together, split at blanks: `SOURCE WORDS` in alphabetical order in {out}.",
        ),
        thought="jq splits the texts at blanks, awk adds up by source.",
        slips=(
            (
                "analysis_error",
                f"jq -rs '{program.replace(_WORDS, 'length')}' {scene.file} | {tail}",
                "length of a text is its size.",
            ),
            (
                "command_error",
                f"jq -rs '{program}' {scene.file} | {tail.replace('+= $2', '+= 1')}",
                "Each line adds to its source.",
            ),
        ),
    )


_STEPS = (_labels, _unique, _split, _table, _lengths)


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    """Independent preparations of one file."""
    scene, answers = _scene(rng, place), Answers(rng=rng, place=place)
    return answers.piece(
        family=name,
        title="Prepare a data set",
        openings=(
            f"{scene.path} has one JSON object per line with the keys id, text, label and source; a label can be null.",
            f"Our raw data set is {scene.path}, JSON Lines with id, text, label (null where nobody labelled it) and source.",
            f"This is about the texts in {scene.path}: one JSON object a line, with id, text, label or null, and source.",
        ),
        steps=[make(answers, scene) for make in rng.sample(_STEPS, depth)],
        files=[text_file(place, scene.file, "".join(f"{record}\n" for record in scene.records))],
    )

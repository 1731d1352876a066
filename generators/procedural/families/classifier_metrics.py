"""Predictions of a classifier beside the true labels: accuracy, confusion, precision and recall, the worst errors."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from generators.procedural import words
from generators.procedural.answers import Answers
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, text_file

name = "classifier-metrics"
category = "evaluation metrics"
tools: tuple[str, ...] = ("awk", "cut", "head", "sort", "uniq")
depths = range(1, 6)


@dataclass(frozen=True)
class Case:
    """One prediction; the score is in thousandths."""

    id: str
    label: str
    guess: str
    score: int

    def __str__(self) -> str:
        return f"{self.id},{self.label},{self.guess},0.{self.score:03d}"


@dataclass(frozen=True)
class Scene:
    """Predictions in file order. Every class is mistaken for every other, its own share of right guesses differs."""

    at: str
    file: str
    classes: list[str]
    cases: list[Case]

    @property
    def path(self) -> str:
        return f"{self.at}/{self.file}"

    def hits(self) -> list[Case]:
        return [case for case in self.cases if case.label == case.guess]


def _scene(rng: random.Random, place: Place) -> Scene:
    classes = sorted(words.distinct(rng, words.PRODUCTS, 3))
    counts = {
        (a, b): 3 + 5 * i * i + 2 * j if a != b else 20 + 9 * i
        for i, a in enumerate(classes)
        for j, b in enumerate(classes)
    }
    pairs = [pair for pair, count in counts.items() for _ in range(count + rng.randint(0, 1))]
    rng.shuffle(pairs)
    scores = rng.sample(range(340, 999), len(pairs))
    scores[next(n for n, (label, guess) in enumerate(pairs) if label == guess)] = 999
    stem = f"{rng.choice(words.TERMS)[:4]}{rng.randint(10, 99)}"
    cases = [
        Case(f"{stem}-{n:03d}", label, guess, score)
        for n, ((label, guess), score) in enumerate(zip(pairs, scores, strict=True), 1)
    ]
    return Scene(place.directory, f"predictions-{rng.choice(words.PROJECTS)}.csv", classes, cases)


def _accuracy(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    program = 'NR > 1 {n++; ok += $2 == $3} END {printf "%d %d %.4f\\n", ok, n, ok / n}'
    return answers.step(
        out,
        [f"{len(scene.hits())} {len(scene.cases)} {len(scene.hits()) / len(scene.cases):.4f}"],
        f"awk -F, '{program}' {scene.file}",
        says=(
            f"Write one line to {out}: number of right predictions in {scene.path}, number of all, accuracy with four decimals, separated by single blanks.",
            f"How accurate is the model in {scene.path}? One line `RIGHT ALL ACCURACY` in {out}, single blanks, the accuracy as a fraction with four decimals.",
            f"I need the accuracy for {scene.path} in {out}: how many are right, how many there are, the quotient with four decimals; all on one line, one blank between.",
        ),
        thought="Right means second field equal to third; the header doesn't count.",
        slips=(
            ("command_error", f"awk -F, '{program.removeprefix('NR > 1 ')}' {scene.file}", "Every line counts as one."),
            (
                "requirement_violation",
                f"awk -F, '{program.replace('ok / n', '100 * ok / n')}' {scene.file}",
                "Accuracy is given in per cent.",
            ),
        ),
    )


def _confusion(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh(".csv")
    counts = Counter((case.label, case.guess) for case in scene.cases)
    tail = "sort | uniq -c | awk '{print $2 \",\" $1}'"
    return answers.step(
        out,
        [f"{label},{guess},{count}" for (label, guess), count in sorted(counts.items())],
        f"tail -n +2 {scene.file} | cut -d, -f2,3 | {tail}",
        says=(
            f"Write the confusion counts of {scene.path} to {out}: `LABEL,PREDICTED,COUNT` for each pair that occurs, no header, sorted by label, then by prediction.",
            f"Count how often each label of {scene.path} was predicted as what, lines `LABEL,PREDICTED,COUNT` without header in {out}, ordered by label and prediction.",
            f"Make a confusion list from {scene.path} in {out}: label, prediction, how often, separated by commas; alphabetical by label, then prediction; no heading.",
        ),
        thought="Two columns, sorted and counted, then the count moved to the end.",
        slips=(
            (
                "command_error",
                f"tail -n +2 {scene.file} | cut -d, -f2,3 | {tail.removeprefix('sort | ')}",
                "uniq -c counts equal lines.",
            ),
            (
                "analysis_error",
                f"tail -n +2 {scene.file} | awk -F, '{{print $3 \",\" $2}}' | {tail}",
                "Prediction and label, in this order.",
            ),
        ),
    )


def _precision(answers: Answers, scene: Scene) -> Step:
    out, target = answers.fresh(), answers.rng.choice(scene.classes)
    right = sum(case.label == case.guess == target for case in scene.cases)
    guessed, real = (sum(getattr(case, side) == target for case in scene.cases) for side in ("guess", "label"))
    program = '$3 == c {p++; t += $2 == c} $2 == c {r++} END {printf "precision %.4f\\nrecall %.4f\\n", t / p, t / r}'
    return answers.step(
        out,
        [f"precision {right / guessed:.4f}", f"recall {right / real:.4f}"],
        f"awk -F, -v c={target} '{program}' {scene.file}",
        says=(
            f"Write precision and recall of the class {target} in {scene.path} to {out}, as the two lines `precision X` and `recall Y` with four decimals each.",
            f"What are precision and recall for {target} in {scene.path}? Two lines in {out}, `precision X` first and `recall Y` below, four decimals.",
            f"For {target} in {scene.path} I want `precision X` on the first and `recall Y` on the second line of {out}, both to four decimals.",
        ),
        thought="Right ones among the predicted give precision, among the real ones recall.",
        slips=(
            (
                "analysis_error",
                f"awk -F, -v c={target} '{program.replace('t / p, t / r', 't / r, t / p')}' {scene.file}",
                "Precision divides by those that are really there.",
            ),
            (
                "requirement_violation",
                f"awk -F, -v c={target} '{program.replace('%.4f', '%.2f')}' {scene.file}",
                "Two decimals are what papers print.",
            ),
        ),
    )


def _worst(answers: Answers, scene: Scene) -> Step:
    out, count = answers.fresh(), answers.rng.randint(4, 7)
    wrong = sorted((case for case in scene.cases if case.label != case.guess), key=lambda case: -case.score)
    return answers.step(
        out,
        [case.id for case in wrong[:count]],
        f"awk -F, 'NR > 1 && $2 != $3' {scene.file} | sort -t, -k4,4nr | head -n {count} | cut -d, -f1",
        says=(
            f"Write the ids of the {count} wrong predictions with the highest score in {scene.path} to {out}, highest score first, one per line.",
            f"Which {count} errors in {scene.path} was the model most sure of? Their ids, highest score on top, one a line, in {out}.",
            f"Find the {count} most confident mistakes in {scene.path} (wrong prediction, highest score) and put their ids into {out}, one a line, most confident first.",
        ),
        thought="Keep the wrong ones, sort by score downwards, cut the ids of the first few.",
        slips=(
            (
                "analysis_error",
                f"tail -n +2 {scene.file} | sort -t, -k4,4nr | head -n {count} | cut -d, -f1",
                "The highest scores are at the top after sorting.",
            ),
            (
                "requirement_violation",
                f"awk -F, 'NR > 1 && $2 != $3' {scene.file} | sort -t, -k4,4n | head -n {count} | cut -d, -f1",
                "Sorted by score, the first ones are it.",
            ),
        ),
    )


def _threshold(answers: Answers, scene: Scene) -> Step:
    out, limit = answers.fresh(), answers.rng.randint(55, 75)
    kept = [case for case in scene.cases if case.score >= 10 * limit]
    hits = {name: sum(case.guess == name == case.label for case in kept) for name in scene.classes}
    total = {name: sum(case.guess == name for case in kept) for name in scene.classes}
    program = "NR > 1 && $4 >= s {n[$3]++; ok[$3] += $2 == $3} END {for (c in n) print c, ok[c], n[c]}"
    return answers.step(
        out,
        [f"{name} {hits[name]} {total[name]}" for name in scene.classes if total[name]],
        f"awk -F, -v s=0.{limit} '{program}' {scene.file} | sort",
        says=(
            f"Taking only predictions of {scene.path} with a score of at least 0.{limit}, write `CLASS RIGHT ALL` for each predicted class to {out} (how many of its predictions are right, how many there are), sorted by class, single blanks.",
            f"Leave out whatever in {scene.path} scores below 0.{limit}. For each predicted class {out} gets `CLASS RIGHT ALL`: right predictions of that class, all its predictions; by class, one blank between.",
            f"If we drop everything under 0.{limit} in {scene.path}, how good is each predicted class? `CLASS RIGHT ALL` in {out}, alphabetical, single blanks; exactly 0.{limit} stays in.",
        ),
        thought="Filter by the score first, then count by predicted class.",
        slips=(
            (
                "analysis_error",
                f"awk -F, -v s=0.{limit} '{program.replace('[$3]', '[$2]')}' {scene.file} | sort",
                "The class of a case is its label.",
            ),
            (
                "requirement_violation",
                f"awk -F, -v s=0 '{program}' {scene.file} | sort",
                "All cases give the more solid numbers.",
            ),
        ),
    )


_STEPS = (_accuracy, _confusion, _precision, _worst, _threshold)


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    """Independent measures of the same predictions."""
    scene, answers = _scene(rng, place), Answers(rng=rng, place=place)
    text = "id,label,predicted,score\n" + "".join(f"{case}\n" for case in scene.cases)
    return answers.piece(
        family=name,
        title="Measure a classifier",
        openings=(
            f"The predictions in {scene.path} are plain CSV with the header id,label,predicted,score; a prediction is right if it equals the label.",
            f"I let the model run and saved its output as {scene.path} (CSV, header id,label,predicted,score). Label is the truth.",
            f"Here is what our classifier said: {scene.path}, a CSV with id, true label, prediction and score under a header.",
        ),
        steps=[make(answers, scene) for make in rng.sample(_STEPS, depth)],
        files=[text_file(place, scene.file, text)],
    )

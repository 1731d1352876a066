"""Training runs recorded one JSON file each: the best run, means by setting, what failed, curves."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

from generators.procedural import words
from generators.procedural.answers import Answers
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, text_file

name = "run-records"
category = "experiment records"
tools: tuple[str, ...] = ("awk", "head", "jq", "sort")
depths = range(1, 6)

_DONE = 'select(.status == "done") | '
_OPEN, _FAILED = '.status != "done"', '.status == "failed"'


@dataclass(frozen=True)
class Run:
    """One run; losses are in thousandths, one for each epoch."""

    name: str
    rate: str
    batch: int
    seed: int
    status: str
    losses: list[int]

    @property
    def best(self) -> int:
        return min(self.losses)

    def text(self) -> str:
        curve = [{"epoch": n, "loss": loss / 1000} for n, loss in enumerate(self.losses, 1)]
        return (
            json.dumps(
                {
                    "config": {"rate": self.rate, "batch": self.batch, "seed": self.seed},
                    "status": self.status,
                    "curve": curve,
                },
                indent=2,
            )
            + "\n"
        )


@dataclass(frozen=True)
class Scene:
    """Runs by name. The lowest loss belongs to a failed run, and in each run the last loss is not the best."""

    at: str
    runs: list[Run]

    @property
    def done(self) -> list[Run]:
        return [run for run in self.runs if run.status == "done"]


def _scene(rng: random.Random, place: Place) -> Scene:
    names = sorted(f"{stem}-{rng.randint(10, 99)}" for stem in words.distinct(rng, words.PROJECTS, rng.randint(9, 12)))
    values = rng.sample(range(300, 998, 2), 12 * 9)
    runs = []
    for index, run in enumerate(names):
        losses = [values.pop() for _ in range(rng.randint(5, 8))]
        losses[-2] = min(losses) - 1
        status = (
            ("failed", "done", "done", "done", "killed")[index] if index < 5 else rng.choice(("done", "done", "failed"))
        )
        rate, batch = rng.choice(("0.1", "0.03", "0.01")), rng.choice((16, 32, 64))
        runs.append(Run(run, rate, batch, rng.randint(1, 999), status, losses))
    runs[0].losses[2] = rng.randint(101, 250)
    return Scene(place.directory, runs)


def _best(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    ranked = sorted(scene.done, key=lambda run: run.best)[:3]
    program = "[input_filename, (.curve | map(.loss) | min)] | @tsv"
    tail = "sort -k2,2n | head -n 3 | sed -E 's#^runs/(.*)\\.json\\t.*#\\1#'"
    return answers.step(
        out,
        [run.name for run in ranked],
        f"jq -r 'select(.status == \"done\") | {program}' runs/*.json | {tail}",
        says=(
            f"Write the names of the three runs with the lowest loss in any epoch to {out}, lowest first, one per line; only runs whose status is done count.",
            f"Which three finished runs (status done) reached the lowest loss at any time? Their names, best on top, one a line, in {out}.",
            f"I want the best three runs in {out}: status done, lowest loss of any epoch, best first, just the names, one a line.",
        ),
        thought="The minimum over the curve of each finished run, then sorted.",
        slips=(
            ("requirement_violation", f"jq -r '{program}' runs/*.json | {tail}", "The lowest loss wins."),
            (
                "analysis_error",
                f"jq -r 'select(.status == \"done\") | {program}' runs/*.json | {tail.replace('-k2,2n', '-k2,2nr')}",
                "Sorted downwards, the best come first.",
            ),
        ),
    )


def _status(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    program = 'select(.status != "done") | [(input_filename | ltrimstr("runs/") | rtrimstr(".json")), .status, (.curve | length)] | join(" ")'
    return answers.step(
        out,
        [f"{run.name} {run.status} {len(run.losses)}" for run in scene.runs if run.status != "done"],
        f"jq -r '{program}' runs/*.json",
        says=(
            f"Write `NAME STATUS EPOCHS` for each run whose status is not done to {out}, EPOCHS being the number of entries in its curve, sorted by name.",
            f"List the runs that aren't done in {out}: name, status and how many epochs their curve has, single blanks, by name.",
            f"What didn't finish? For everything whose status isn't done, `NAME STATUS EPOCHS` (length of the curve) in alphabetical order in {out}.",
        ),
        thought="Everything that isn't done: failed and killed ones.",
        slips=(
            (
                "analysis_error",
                f"jq -r '{program.replace(_OPEN, _FAILED)}' runs/*.json",
                "Runs that are not done have failed.",
            ),
            (
                "command_error",
                f"jq -r '{program.replace('(.curve | length)', '(. | length)')}' runs/*.json",
                "length counts the entries.",
            ),
        ),
    )


def _by_rate(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    groups: dict[str, list[int]] = {}
    for run in scene.done:
        groups.setdefault(run.rate, []).append(run.losses[-1])
    lines = [f"{rate} {len(found)} {sum(found)}" for rate, found in sorted(groups.items())]
    program = 'select(.status == "done") | [.config.rate, (.curve[-1].loss * 1000 | round)] | @tsv'
    tail = "awk '{n[$1]++; s[$1] += $2} END {for (r in n) print r, n[r], s[r]}' | sort"
    return answers.step(
        out,
        lines,
        f"jq -r '{program}' runs/*.json | {tail}",
        says=(
            f"For each rate in the config of runs with status done write `RATE RUNS SUM` to {out}: how many such runs, and the sum of their losses in the last epoch in whole thousandths (0.512 is 512), sorted by rate as text.",
            f"Group the done runs by the rate in their config: `RATE RUNS SUM` in {out}, with the number of runs and the sum of their last losses in thousandths as a whole number (0.512 counts 512), ordered by rate as text.",
            f"How did the rates do? Of the runs that are done, per config rate, `RATE RUNS SUM` in {out}; SUM adds the loss of the last epoch, in whole thousandths (0.512 is 512). Text order of the rates.",
        ),
        thought="The last entry of each curve, as a whole number, added up by rate.",
        slips=(
            (
                "analysis_error",
                f"jq -r '{program.replace('.curve[-1].loss', '(.curve | map(.loss) | min)')}' runs/*.json | {tail}",
                "A run's loss is the lowest it reached.",
            ),
            (
                "requirement_violation",
                f"jq -r '{program.removeprefix(_DONE)}' runs/*.json | {tail}",
                "All runs have a rate and a loss.",
            ),
        ),
    )


def _curve(answers: Answers, scene: Scene) -> Step:
    out, run = answers.fresh(".csv"), answers.rng.choice(scene.runs)
    program = ".curve[] | [.epoch, .loss] | @csv"
    return answers.step(
        out,
        ["epoch,loss", *(f"{n},{loss / 1000:g}" for n, loss in enumerate(run.losses, 1))],
        f"{{ echo epoch,loss; jq -r '{program}' runs/{run.name}.json; }}",
        says=(
            f"Write the curve of {scene.at}/runs/{run.name}.json to {out} as CSV with the header epoch,loss, epochs ascending, losses as they are in the file.",
            f"Export the curve in {scene.at}/runs/{run.name}.json to {out}: header epoch,loss and then one line an epoch in order, numbers unchanged.",
            f"I need a CSV {out} from {scene.at}/runs/{run.name}.json to plot its curve: first line epoch,loss, then the pairs as they come.",
        ),
        thought="A header line, then jq writes each entry as CSV.",
        slips=(
            ("requirement_violation", f"jq -r '{program}' runs/{run.name}.json", "The numbers are what gets plotted."),
            ("command_error", f"{{ echo epoch,loss; jq '{program}' runs/{run.name}.json; }}", "@csv writes the lines."),
        ),
    )


def _worse(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    rows = [(run.name, run.losses.index(run.best) + 1) for run in scene.done]
    program = 'select(.status == "done") | [(input_filename | ltrimstr("runs/") | rtrimstr(".json")), (.curve | min_by(.loss).epoch)] | join(" ")'
    return answers.step(
        out,
        [f"{run} {epoch}" for run, epoch in rows],
        f"jq -r '{program}' runs/*.json",
        says=(
            f"Write `NAME EPOCH` for every run with status done to {out}: the epoch in which its loss was lowest, sorted by name.",
            f"At which epoch would each done run have had its lowest loss? `NAME EPOCH`, by name, in {out}.",
            f"When should we have stopped? For each run that's done, its name and the epoch with the lowest loss, `NAME EPOCH`, alphabetical, in {out}.",
        ),
        thought="min_by finds the entry with the lowest loss, and its epoch is the answer.",
        slips=(
            (
                "analysis_error",
                f"jq -r '{program.replace('min_by(.loss).epoch', 'last.epoch')}' runs/*.json",
                "Training goes on as long as the loss falls.",
            ),
            (
                "requirement_violation",
                f"jq -r '{program.replace('min_by(.loss).epoch', 'min_by(.loss).loss')}' runs/*.json",
                "The lowest loss is the answer.",
            ),
        ),
    )


_STEPS = (_best, _status, _by_rate, _curve, _worse)


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    """Independent questions to one folder of runs."""
    scene, answers = _scene(rng, place), Answers(rng=rng, place=place)
    at = f"{scene.at}/runs"
    return answers.piece(
        family=name,
        title="Compare training runs",
        openings=(
            f"Each file NAME.json in {at} records the training run NAME: its config, a status and a curve of losses by epoch.",
            f"My training runs are in {at}, one JSON file each, called NAME.json for the run NAME, with config, status and curve (epoch and loss).",
            f"There is a folder of training runs, {at}; the file NAME.json belongs to the run NAME and has config, status and the curve of losses.",
        ),
        steps=[make(answers, scene) for make in rng.sample(_STEPS, depth)],
        files=[text_file(place, f"runs/{run.name}.json", run.text()) for run in scene.runs],
    )

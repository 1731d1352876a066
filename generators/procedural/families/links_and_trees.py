"""The layout of a release tree: rename, collect by type, copy a folder, build directories, point links at them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from generators.procedural import words
from generators.procedural.checks import absent, check, link_is, present, target_is, tree_holds, tree_is
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, assemble, slip, text_file

name = "links-and-trees"
category = "file operations"
tools: tuple[str, ...] = ("cp", "ln", "mkdir", "mv")
depths = range(1, 6)


@dataclass
class Scene:
    """Content by path relative to the place, as it stands."""

    rng: random.Random
    at: str
    releases: str
    versions: list[str]
    inbox: str
    tree: dict[str, bytes]
    fresh: list[str]
    outputs: list[str] = field(default_factory=list)

    def output(self, output: str) -> str:
        self.outputs.append(output)
        return output

    def below(self, folder: str) -> dict[str, bytes]:
        return {
            path.removeprefix(folder + "/"): data for path, data in self.tree.items() if path.startswith(folder + "/")
        }


def _current(scene: Scene) -> Step:
    version = scene.rng.choice(scene.versions)
    link = scene.output(f"{scene.releases}/current")
    target = f"{scene.at}/{scene.releases}/{version}"
    return Step(
        says=(
            f"Create the symbolic link {scene.at}/{link} with the relative target {version}.",
            f"Make {scene.at}/{link} a symlink to the directory {version} beside it; the target has to be relative, just `{version}`.",
            f"Point {scene.at}/{link} at release {version} with a symbolic link that still works when the whole tree moves, so its target is plain `{version}`.",
        ),
        thought="The target of a link is read from the link's own directory, so the bare name is right.",
        command=f"ln -s {version} {link}",
        checks=(link_is(f"{scene.at}/{link}", version),),
        mistakes=(
            slip("requirement_violation", f"ln -s {target} {link}", "An absolute target always works.", f"rm {link}"),
            slip(
                "analysis_error",
                f"ln -s {scene.releases}/{version} {link}",
                "That is the path from here.",
                f"rm {link}",
            ),
            slip(
                "command_error", f"ln -s {link} {version}", "First the link, then what it points to.", f"rm {version}"
            ),
        ),
    )


def _shortcut(scene: Scene) -> Step:
    version = scene.rng.choice(scene.versions)
    file = scene.rng.choice(sorted(scene.below(f"{scene.releases}/{version}")))
    link = scene.output(f"{scene.rng.choice(words.PROJECTS)}-{file}")
    source = f"{scene.releases}/{version}/{file}"
    return Step(
        says=(
            f"Create {scene.at}/{link} as a symbolic link (relative or absolute) that leads to {scene.at}/{source}.",
            f"Add a symlink {scene.at}/{link} through which {scene.at}/{source} can be read; relative or absolute is up to you.",
            f"I want to reach {scene.at}/{source} quickly: let {scene.at}/{link} be a symbolic link to it.",
        ),
        thought="From the directory of the link the relative path is the same as from here.",
        command=f"ln -s {source} {link}",
        checks=(target_is(f"{scene.at}/{link}", f"{scene.at}/{source}"),),
        mistakes=(
            slip("requirement_violation", f"cp {source} {link}", "A copy reads the same.", f"rm {link}"),
            slip("analysis_error", f"ln {source} {link}", "ln makes links.", f"rm {link}"),
            slip("command_error", f"ln -s {version}/{file} {link}", "The release directory is enough.", f"rm {link}"),
        ),
    )


def _collect(scene: Scene) -> Step:
    suffix = scene.rng.choice(sorted({path.rsplit(".", 1)[1] for path in scene.below(scene.inbox)}))
    folder = scene.output(scene.fresh.pop())
    moved = {path: data for path, data in scene.below(scene.inbox).items() if path.endswith(f".{suffix}")}
    for path, data in moved.items():
        scene.tree[f"{folder}/{path}"] = data
        del scene.tree[f"{scene.inbox}/{path}"]
    back = f"mv {folder}/* {scene.inbox}/"
    return Step(
        says=(
            f"Move all .{suffix} files from {scene.at}/{scene.inbox} into a new directory {scene.at}/{folder}; everything else stays in {scene.inbox}.",
            f"Separate the .{suffix} files: they move from {scene.at}/{scene.inbox} to {scene.at}/{folder}, which has to be created. The rest stays put.",
            f"I'd like the .{suffix} files of {scene.at}/{scene.inbox} out of there and in their own directory {scene.at}/{folder}, and only those.",
        ),
        thought="Create the directory, then move by suffix.",
        command=f"mkdir {folder} && mv {scene.inbox}/*.{suffix} {folder}/",
        checks=(
            tree_is(f"{scene.at}/{folder}", list(moved)),
            tree_is(f"{scene.at}/{scene.inbox}", list(scene.below(scene.inbox))),
            tree_holds(f"{scene.at}/{folder}", moved),
        ),
        mistakes=(
            slip(
                "requirement_violation",
                f"mkdir {folder} && cp {scene.inbox}/*.{suffix} {folder}/",
                "Then they are in the new directory.",
                f"rm -r {folder}",
            ),
            slip(
                "analysis_error",
                f"mkdir {folder} && mv {scene.inbox}/* {folder}/",
                "It is all that kind of file.",
                back,
                f"rmdir {folder}",
            ),
            slip("command_error", f"mv {scene.inbox}/*.{suffix} {folder}/", "mv creates the target directory."),
        ),
    )


def _duplicate(scene: Scene) -> Step:
    version = scene.versions[0]
    folder = scene.output(f"{scene.fresh.pop()}-{version}")
    source = f"{scene.releases}/{version}"
    copied = scene.below(source)
    return Step(
        says=(
            f"Copy the directory {scene.at}/{source} with everything in it to {scene.at}/{folder}, so that the files lie directly in {folder}.",
            f"Take a full copy of {scene.at}/{source} and call it {scene.at}/{folder}; the original stays where it is.",
            f"Before anybody touches {scene.at}/{source}, I want a complete copy as {scene.at}/{folder} (its content directly inside).",
        ),
        thought="As the target does not exist, cp -a makes it a copy of the directory itself.",
        command=f"cp -a {source} {folder}",
        checks=(
            tree_is(f"{scene.at}/{folder}", list(copied)),
            tree_is(f"{scene.at}/{source}", list(copied)),
            tree_holds(f"{scene.at}/{folder}", copied),
        ),
        mistakes=(
            slip(
                "requirement_violation",
                f"mkdir {folder} && cp -a {source} {folder}/",
                "The copy belongs in that directory.",
                f"rm -r {folder}",
            ),
            slip("command_error", f"cp {source} {folder}", "cp copies a directory like a file."),
            slip("analysis_error", f"mv {source} {folder}", "The release gets the new name.", f"mv {folder} {source}"),
        ),
    )


def _skeleton(scene: Scene) -> Step:
    top = scene.output(scene.fresh.pop())
    cities = words.distinct(scene.rng, words.CITIES, scene.rng.randint(2, 3))
    parts = words.distinct(scene.rng, words.STEMS, 2)
    wanted = sorted(f"{city}/{part}" for city in cities for part in parts)
    found = (
        f"expected: list[str] = {wanted!r}\n"
        "assert os.path.isdir(path), f'{path} is not a directory'\n"
        "found = [os.path.relpath(top, path) for top, folders, _ in os.walk(path) if not folders]\n"
        "assert sorted(found) == expected, f'{path} has {sorted(found)}'"
    )
    listed = f"{', '.join(cities[:-1])} and {cities[-1]}"
    braces = f"{{{','.join(cities)}}}/{{{','.join(parts)}}}"
    return Step(
        says=(
            f"Create the directory {scene.at}/{top} with a directory for each of {listed}, and in each of these the directories {parts[0]} and {parts[1]}.",
            f"Build an empty skeleton under {scene.at}/{top}: one directory each for {listed}, each with {parts[0]} and {parts[1]} inside, and nothing else.",
            f"Set up {scene.at}/{top} for {listed}; every one of them gets its own {parts[0]} and {parts[1]} directory.",
        ),
        thought="Brace expansion and mkdir -p make all of them at once.",
        command=f"mkdir -p {top}/{braces}",
        checks=(check(f"{scene.at}/{top}", "skeleton", found),),
        mistakes=(
            slip("command_error", f"mkdir {top}/{braces}", "mkdir makes the directories on the way."),
            slip(
                "analysis_error",
                f"mkdir -p {top}/{braces.replace('}/{', ',')}",
                "All of them go into that directory.",
                f"rm -r {top}",
            ),
            slip(
                "requirement_violation",
                f"mkdir -p {top}/{cities[0]}/{{{','.join(parts)}}}",
                "One of them shows the pattern.",
            ),
        ),
    )


def _rename(scene: Scene) -> Step:
    version = scene.versions[1]
    folder = f"{scene.releases}/{version}"
    old = sorted(path for path in scene.below(folder) if path.endswith(".txt"))
    for path in old:
        scene.tree[f"{folder}/{path[:-4]}.md"] = scene.tree.pop(f"{folder}/{path}")
    now = scene.below(folder)
    loop = f'for f in {folder}/*.txt; do mv "$f" "${{f%.txt}}.md"; done'
    undo = f'for f in {folder}/*.txt.md; do mv "$f" "${{f%.md}}"; done'
    return Step(
        says=(
            f"Rename every .txt file in {scene.at}/{folder} so that it ends in .md instead of .txt.",
            f"In {scene.at}/{folder} the .txt files should be called .md: same name otherwise, same content.",
            f"All those .txt files in {scene.at}/{folder} are really Markdown, so change the ending to .md.",
        ),
        thought="A loop with the suffix cut off by the shell renames each.",
        command=loop,
        checks=(tree_is(f"{scene.at}/{folder}", list(now)), tree_holds(f"{scene.at}/{folder}", now)),
        mistakes=(
            slip("command_error", f"mv {folder}/*.txt {folder}/*.md", "mv maps one pattern to the other."),
            slip("requirement_violation", loop.replace("${f%.txt}", "$f"), "The new ending is added.", undo),
            slip(
                "analysis_error",
                f'for f in {folder}/*.txt; do cp "$f" "${{f%.txt}}.md"; done',
                "A new file with the new name.",
            ),
        ),
    )


_JOBS: tuple[Callable[[Scene], Step], ...] = (_duplicate, _rename, _current, _collect, _skeleton, _shortcut)


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    """Different jobs on one tree, in an order in which each finds what it needs."""
    releases, inbox, *fresh = words.distinct(rng, words.AREAS, 5)
    major = rng.randint(1, 9)
    versions = [f"{major}.{minor}.{rng.randint(0, 12)}" for minor in rng.sample(range(20), 3)]
    tree: dict[str, bytes] = {}
    for version in versions:
        stems = words.distinct(rng, words.STEMS, rng.randint(4, 6))
        names = [
            *(f"{stem}.txt" for stem in stems[:2]),
            *(f"{stem}{rng.choice(('.sh', '.txt', '.cfg'))}" for stem in stems[2:]),
        ]
        tree |= {f"{releases}/{version}/{file}": words.prose(rng, 3).encode() for file in names}
    for suffix in (".csv", ".png", ".pdf"):
        tree |= {
            f"{inbox}/{file}": words.prose(rng, 2).encode()
            for file in words.file_names(rng, rng.randint(2, 4), (suffix,))
        }
    scene = Scene(rng, place.directory, releases, versions, inbox, dict(tree), fresh)
    steps = [_JOBS[index](scene) for index in sorted(rng.sample(range(len(_JOBS)), depth))]
    return assemble(
        family=name,
        title="Arrange a release tree",
        place=place,
        openings=(
            f"The tree in {place.directory} has to be rearranged a little.",
            f"I'm tidying the release tree in {place.directory}.",
            f"Could you put {place.directory} into shape?",
        ),
        steps=steps,
        files=[text_file(place, path, data.decode()) for path, data in tree.items()],
        initial_checks=(
            present(place.directory, list(tree)),
            *(absent(f"{place.directory}/{out}") for out in scene.outputs),
        ),
    )

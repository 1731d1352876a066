"""Repositories in a mess: a lost branch, a commit in the wrong place, a bad change, a half-done merge, forgotten stashes.

Every job has a repository of its own, so that no repair stands in another's way.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from generators.procedural import repository, words
from generators.procedural.checks import check
from generators.procedural.family import Piece, Place
from generators.procedural.repository import Commit, save, write
from generators.procedural.steps import Step, assemble, slip

name = "git-repair"
category = "version control"
tools: tuple[str, ...] = ("git", "sed")
depths = range(1, 6)


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    jobs = rng.sample((_lost_branch, _wrong_branch, _bad_commit, _open_merge, _old_stash), depth)
    mains = [f"{word}-{rng.choice(words.AREAS)}" for word in words.distinct(rng, words.PROJECTS, depth)]
    repos = [Repo(rng=rng, place=place, name=main) for main in mains]
    steps = [job(repo) for job, repo in zip(jobs, repos, strict=True)]
    several = "a few repositories" if depth > 1 else "a repository"
    return assemble(
        family=name,
        title="Repair git repositories" if depth > 1 else "Repair a git repository",
        place=place,
        openings=(
            f"The directory {place.directory} holds {several} in need of repair; name and e-mail for commits are configured.",
            f"I made a mess with git under {place.directory} and would be glad of help.",
            f"There is some git trouble in {place.directory}.",
        ),
        steps=steps,
        files=(),
        setup=tuple(f"({' && '.join(repo.setup)})" for repo in repos),
        initial_checks=tuple(
            check(repo.path, "is_a_repository", "run('git', 'rev-parse', 'main', cwd=path)") for repo in repos
        ),
    )


@dataclass
class Repo:
    """A repository being written: three commits on main, then what the job adds."""

    rng: random.Random
    place: Place
    name: str
    setup: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    """Subjects on main, newest first."""

    def __post_init__(self) -> None:
        self.path = f"{self.place.directory}/{self.name}"
        self.owner = words.full_name(self.rng)
        self.subjects: Iterator[str] = repository.subjects(self.rng)
        self.clock: Iterator[datetime] = repository.clock(self.rng)
        self.paths = words.file_names(self.rng, 4, (".md", ".txt", ".conf"))
        self.contents = {path: self.lines() for path in self.paths}
        self.setup += repository.start(self.name, self.owner)
        for path in self.paths[:3]:
            self.commit({path: self.contents[path]})

    def lines(self) -> list[str]:
        return [f"{words.phrase(self.rng, 2, 5)} {words.token(self.rng, 4)}" for _ in range(self.rng.randint(4, 7))]

    def commit(self, files: dict[str, list[str]], *, on_main: bool = True) -> str:
        """Add a commit to the set-up on whatever branch it is on; gives its subject."""
        subject = next(self.subjects)
        self.setup += save(Commit(author=self.owner, when=next(self.clock), subject=subject, files=files))
        if on_main:
            self.log.insert(0, subject)
        return subject

    def check(self, form: str, *body: str) -> str:
        return check(self.path, form, *body)

    def log_is(self, branch: str, subjects: Sequence[str]) -> str:
        return self.check(
            f"log_of_{branch.replace('-', '_')}",
            f"found = run('git', 'log', '--format=%s', 'refs/heads/{branch}', '--', cwd=path).splitlines()",
            f"assert found == {list(subjects)!r}, f'commits on {branch}: {{found}}'",
        )

    def content_is(self, branch: str, path: str, lines: Sequence[str]) -> str:
        return self.check(
            f"content_on_{branch.replace('-', '_')}",
            f"found = run('git', 'show', 'refs/heads/{branch}:{path}', cwd=path).splitlines()",
            f"assert found == {list(lines)!r}, '{path} on {branch} differs'",
        )


def _branch(rng: random.Random) -> str:
    return f"{rng.choice(words.TERMS)}-{rng.choice(words.STEMS)}"


def _lost_branch(repo: Repo) -> Step:
    branch, path, lines = _branch(repo.rng), repo.paths[3], repo.contents[repo.paths[3]]
    repo.setup.append(f"git checkout -q -b {branch}")
    subject = repo.commit({path: lines}, on_main=False)
    repo.setup += ["git checkout -q main", f"git branch -q -D {branch}"]
    git = f"git -C {repo.name}"
    return Step(
        says=(
            f"In {repo.path} the branch {branch} was deleted before it was merged. Bring the branch back under the same name with its commit `{subject}` as its tip; main stays as it is.",
            f"Restore the branch {branch} of {repo.path}: I deleted it by accident, and its only commit, `{subject}`, should be the tip of it again. Don't touch main.",
            f"Get my work `{subject}` in {repo.path} back, please. It was on the branch {branch}, which I deleted; I want that branch again, ending in that very commit, and main as it is.",
        ),
        thought="The commit is no longer on any branch, but the reflog of HEAD still knows it.",
        command=f"""{git} branch {branch} "$({git} log -g -1 --format=%H --grep='{subject}')" """.strip(),
        checks=(
            repo.log_is(branch, [subject, *repo.log]),
            repo.content_is(branch, path, lines),
            repo.log_is("main", repo.log),
        ),
        mistakes=(
            slip(
                "analysis_error",
                f"{git} branch {branch}",
                "Creating the branch again brings back what was on it.",
                f"{git} branch -D {branch}",
            ),
            slip(
                "hallucination",
                f"{git} branch --undelete {branch}",
                "git has an option to undo the deletion of a branch.",
            ),
            slip(
                "verification_failure",
                f"""{git} checkout -q "$({git} log -g -1 --format=%H --grep='{subject}')" """.strip(),
                "The files of that commit are back in the directory.",
                f"{git} switch -q main",
            ),
        ),
    )


def _wrong_branch(repo: Repo) -> Step:
    right, wrong = f"topic-{repo.rng.choice(words.STEMS)}", f"release-{repo.rng.randint(2, 9)}"
    path, lines = repo.paths[3], repo.contents[repo.paths[3]]
    repo.setup.append(f"git checkout -q -b {right}")
    own = repo.commit({repo.paths[0]: repo.lines()}, on_main=False)
    repo.setup.append(f"git checkout -q -b {wrong} main")
    kept = repo.commit({repo.paths[1]: repo.lines()}, on_main=False)
    stray = repo.commit({path: lines}, on_main=False)
    repo.setup.append("git checkout -q main")
    git = f"git -C {repo.name}"
    return Step(
        says=(
            f"In {repo.path} the last commit of branch {wrong}, `{stray}`, belongs on top of branch {right}: move it there, with the same subject, so that {wrong} ends with `{kept}`; nothing else of {wrong} may get into {right}.",
            f"Move the commit `{stray}` in {repo.path} from the tip of {wrong} to the tip of {right}. It keeps its subject, {wrong} must end with `{kept}` afterwards, and {right} gets this one commit and no other.",
            f"Put a commit of mine where it belongs: in {repo.path} I committed `{stray}` to {wrong} instead of {right}. I want it as the newest commit of {right}, subject unchanged, and gone from {wrong}, which then ends with `{kept}`. Take nothing else along.",
        ),
        thought=f"Pick the commit onto {right}, then set {wrong} back by one.",
        command=f"{git} switch -q {right} && {git} cherry-pick {wrong} && {git} branch -f {wrong} {wrong}~1 && {git} switch -q main",
        checks=(
            repo.log_is(right, [stray, own, *repo.log]),
            repo.log_is(wrong, [kept, *repo.log]),
            repo.content_is(right, path, lines),
        ),
        mistakes=(
            slip(
                "requirement_violation",
                f"{git} switch -q {right} && {git} cherry-pick {wrong}",
                "With the commit on the right branch all is well.",
                f"{git} switch -q main",
                f"{git} branch -f {right} {right}~1",
            ),
            slip(
                "command_error",
                f"{git} switch -q {right} && {git} merge -q --no-edit {wrong} && {git} branch -f {wrong} {wrong}~1",
                "A merge brings the commit over.",
                f"{git} branch -f {wrong} {right}^2",
                f"{git} reset -q --hard HEAD~1",
                f"{git} switch -q main",
            ),
            slip(
                "analysis_error",
                f"{git} branch -f {wrong} {wrong}~1",
                "Taking the commit off the wrong branch moves it back.",
                f"{git} branch -f {wrong} {wrong}@{{1}}",
            ),
        ),
    )


def _bad_commit(repo: Repo) -> Step:
    path = repo.paths[0]
    good = repo.contents[path]
    bad = repo.commit({path: [*good[:2], *repo.lines()]})
    repo.commit({repo.paths[1]: repo.lines()})
    last = repo.commit({repo.paths[3]: repo.contents[repo.paths[3]]})
    git = f"git -C {repo.name}"
    return Step(
        says=(
            f"In {repo.path} undo the commit `{bad}` with one new commit on main (any subject) that takes back exactly its change to {path}; the history up to now stays.",
            f"Take back the change of the commit `{bad}` on main of {repo.path}, as one more commit with whatever subject you like. The existing commits must all stay, {path} must be as it was before that commit, and the later work is kept.",
            f"Revert the commit `{bad}` in {repo.path}, it broke {path}. Don't rewrite main: add one commit, its subject doesn't matter, after which {path} is what it was before, and keep what came later.",
        ),
        thought="I look the commit up by its subject and let git revert it.",
        command=f"""{git} revert --no-edit "$({git} log -1 --format=%H --grep='{bad}' main)" """.strip(),
        checks=(
            repo.content_is("main", path, good),
            repo.check(
                "history_of_main",
                "found = run('git', 'log', '--format=%s', 'main', cwd=path).splitlines()",
                f"assert found[1:] == {repo.log!r}, f'commits on main: {{found}}'",
            ),
        ),
        mistakes=(
            slip(
                "analysis_error",
                f"{git} revert --no-edit HEAD",
                f"The broken change is the newest commit, `{last}` only came with it.",
                f"{git} reset -q --hard HEAD~1",
            ),
            slip(
                "requirement_violation",
                f"""{git} reset -q --hard "$({git} log -1 --format=%H --grep='{bad}' main)~1" """.strip(),
                "Going back to the state before that commit undoes it.",
                f"{git} reset -q --hard ORIG_HEAD",
            ),
            slip(
                "verification_failure",
                f"""{git} revert --no-commit "$({git} log -1 --format=%H --grep='{bad}' main)" """.strip(),
                f"{path} looks right again in the working tree.",
                f"{git} revert --abort",
            ),
        ),
    )


def _open_merge(repo: Repo) -> Step:
    branch, path = _branch(repo.rng), repo.paths[0]
    base = [f"{key} = {repo.rng.randint(10, 99)}" for key in words.distinct(repo.rng, words.TERMS, 8)]
    repo.commit({path: base})
    mine, theirs = list(base), list(base)
    mine[2], theirs[2] = f"{base[2]}00", f"{base[2]}50"
    mine[7], theirs[5] = f"{base[7]}1", f"{base[5]}2"
    repo.setup.append(f"git checkout -q -b {branch}")
    repo.commit({path: theirs}, on_main=False)
    repo.setup.append("git checkout -q main")
    repo.commit({path: mine})
    repo.setup.append(f"(git merge {branch} > /dev/null || true)")
    keep_theirs = repo.rng.random() < 0.5
    winner = branch if keep_theirs else "main"
    merged = [*base[:2], (theirs if keep_theirs else mine)[2], *base[3:5], theirs[5], base[6], mine[7]]
    cut = r"/^<<<<<<< /,/^=======$/d; /^>>>>>>> /d" if keep_theirs else r"/^<<<<<<< /d; /^=======$/,/^>>>>>>> /d"
    git = f"git -C {repo.name}"
    key = base[2].split(" ")[0]
    return Step(
        says=(
            f"In {repo.path} the merge of {branch} into main stopped at a conflict in {path}. Finish it as a merge commit with any message: take the value of {winner} for `{key}`, and keep every other change of both sides.",
            f"Complete the merge of {branch} into main that hangs in {repo.path}: {path} is in conflict about `{key}`, where the value from {winner} is the right one. The other edits of both branches stay. Commit it as a merge, the message is up to you.",
            f"Sort out the half-finished merge in {repo.path} ({branch} into main). Only `{key}` in {path} is disputed, and {winner} is right there; nothing else that either side changed may be lost. I need the merge commit made, with any message.",
        ),
        thought="Only the marked lines are in dispute: drop the markers and the other side's line, then commit the merge.",
        command=f"sed -i '{cut}' {repo.name}/{path} && {git} add {path} && {git} commit -q --no-edit",
        checks=(
            repo.content_is("main", path, merged),
            repo.check(
                "is_merged",
                "parents = run('git', 'log', '-1', '--format=%P', 'main', cwd=path).split()",
                "assert len(parents) == 2, f'the tip of main has {len(parents)} parents'",
                f"assert run('git', 'rev-parse', {branch!r}, cwd=path).strip() in parents, 'that branch is not merged'",
            ),
        ),
        mistakes=(
            slip(
                "analysis_error",
                f"{git} checkout --{'theirs' if keep_theirs else 'ours'} {path} && {git} add {path} && {git} commit -q --no-edit",
                f"The file of {winner} has the right value.",
                f"{git} reset -q --hard HEAD~1",
                f"{git} merge {branch}",
            ),
            slip(
                "verification_failure",
                f"{git} add {path} && {git} commit -q --no-edit",
                "git accepts the commit, so the conflict is settled.",
                f"{git} reset -q --hard HEAD~1",
                f"{git} merge {branch}",
            ),
            slip(
                "requirement_violation",
                f"{git} merge --abort",
                "With the merge out of the way the repository is clean again.",
                f"{git} merge {branch}",
            ),
        ),
    )


def _old_stash(repo: Repo) -> Step:
    wanted, other = (words.phrase(repo.rng, 3, 4) for _ in range(2))
    path, lines = repo.paths[0], repo.lines()
    subject = next(repo.subjects)
    repo.setup += [write(path, lines), f"git stash push -q -m '{wanted}'"]
    repo.setup += [write(repo.paths[1], repo.lines()), f"git stash push -q -m '{other}'"]
    git = f"git -C {repo.name}"
    return Step(
        says=(
            f"In {repo.path} take the stash with the message `{wanted}` off the stash list and commit its change to main with the subject `{subject}`; the stash `{other}` stays in the list.",
            f"Commit the stashed work `{wanted}` of {repo.path} on main, subject `{subject}`. That stash should be gone from the list afterwards, the other one (`{other}`) should still be there.",
            f"Bring back what I stashed as `{wanted}` in {repo.path} and make it a commit on main called `{subject}`. I don't need that stash any longer, but leave `{other}` in the list.",
        ),
        thought="The wanted stash is the older of the two: stash@{1}.",
        command=f"{git} stash pop -q 'stash@{{1}}' && {git} commit -q -a -m '{subject}'",
        checks=(
            repo.log_is("main", [subject, *repo.log]),
            repo.content_is("main", path, lines),
            repo.check(
                "stashes",
                "found = run('git', 'stash', 'list', '--format=%gs', cwd=path).splitlines()",
                f"assert found == ['On main: {other}'], f'stashes: {{found}}'",
            ),
        ),
        mistakes=(
            slip(
                "analysis_error",
                f"{git} stash pop -q && {git} commit -q -a -m '{subject}'",
                "git stash pop brings the stash back.",
                f"{git} reset -q --soft HEAD~1",
                f"{git} stash push -q -m '{other}'",
            ),
            slip(
                "requirement_violation",
                f"{git} stash apply -q 'stash@{{1}}' && {git} commit -q -a -m '{subject}'",
                "apply is the careful form of pop, the stash may stay.",
                f"{git} reset -q --hard HEAD~1",
            ),
            slip(
                "verification_failure",
                f"{git} stash pop -q 'stash@{{1}}'",
                "The change is back in the files, that is what counts.",
                f"{git} stash push -q -m '{wanted}'",
                f"{git} stash store -q -m 'On main: {other}' \"$({git} rev-parse 'stash@{{1}}')\"",
                f"{git} stash drop -q 'stash@{{2}}'",
            ),
        ),
    )

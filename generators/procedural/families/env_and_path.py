"""Which program runs, and with what: search order, wrappers, exported variables, switched versions."""

from __future__ import annotations

import random
from collections.abc import Callable

from generators.procedural import words
from generators.procedural.checks import check, present, target_is, unchanged
from generators.procedural.family import Piece, Place
from generators.procedural.reports import misplaced, report
from generators.procedural.steps import Step, assemble, slip, text_file
from sandbox.spec import File

name = "env-and-path"
category = "environment"
tools: tuple[str, ...] = ("bash", "chmod", "ln")
depths = range(1, 6)

Drawn = tuple[tuple[File, ...], tuple[str, ...], Step]
"""Input files, set-up commands, the step."""


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    makers: tuple[Callable[[random.Random, Place], Drawn], ...] = (_search_path, _wrapper, _exports, _resolve, _switch)
    drawn = [make(rng, place) for make in rng.sample(makers, depth)]
    files = [file for inputs, _, _ in drawn for file in inputs]
    return assemble(
        family=name,
        title="Set up an environment",
        place=place,
        openings=(
            f"The programs under {place.directory} are to be called in a particular way (from bash). Don't change the programs themselves.",
            f"I'm arranging a working environment in {place.directory}, used from bash; the programs in it stay as they are.",
            f"Help me with the environment in {place.directory}, please. We use bash, and the programs there mustn't be edited.",
        ),
        steps=[step for _, _, step in drawn],
        files=files,
        setup=tuple(command for _, commands, _ in drawn for command in commands),
        initial_checks=(present(place.directory, [file.path.removeprefix(place.directory + "/") for file in files]),),
        guards=tuple(unchanged(file.path, file.data) for file in files),
    )


def _program(place: Place, file: str, says: str) -> File:
    return text_file(place, file, f'#!/bin/bash\necho "{says}"\n', mode=0o755)


def _search_path(rng: random.Random, place: Place) -> Drawn:
    tool, new, old = rng.choice(words.TERMS), rng.choice(words.PROJECTS), rng.choice(words.AREAS)
    name_of = f"{tool}-{rng.choice(words.PRODUCTS)}"
    marks = words.token(rng), words.token(rng)
    files = (_program(place, f"{old}/bin/{name_of}", marks[0]), _program(place, f"{new}/bin/{name_of}", marks[1]))
    script = f"{tool}-path.sh"
    target, first, before = (
        f"{place.directory}/{script}",
        f"{place.directory}/{new}/bin",
        f"{place.directory}/{old}/bin",
    )
    command = f"echo 'export PATH=\"{first}:$PATH\"' > {script}"
    test = check(
        target,
        "puts_it_first",
        "read_bytes(path)",
        f"script = 'PATH={before}:/usr/bin:/bin; . \"$1\"; {name_of}; command -v ls; bash -c {name_of}'",
        "found = run('bash', '-c', script, 'bash', path).split()",
        f"assert found == ['{marks[1]}', '/usr/bin/ls', '{marks[1]}'], f'after reading {{path}}: {{found}}'",
    )
    step = Step(
        says=(
            f"Write {target}, to be sourced by bash, so that {name_of} is found in {first} even where {before} comes first on PATH now; everything else on PATH stays reachable, and programs started afterwards inherit it.",
            f"Create a file {target} for bash to source: after it {name_of} comes from {first} and not from {before}, which may be first on PATH. The rest of PATH must remain, and child processes should see the same.",
            f"When I source {target} in bash, {name_of} should be the one in {first}, although PATH may begin with {before}. Write that file; keep what is on PATH, and let programs that I start inherit it.",
        ),
        thought="Put the directory in front of the present PATH, single quotes so that $PATH is expanded when it is sourced.",
        command=command,
        checks=(test,),
        mistakes=(
            slip(
                "analysis_error",
                f"echo 'export PATH=\"$PATH:{first}\"' > {script}",
                "A directory is added to the end of PATH.",
            ),
            slip(
                "requirement_violation",
                f"echo 'export PATH={first}' > {script}",
                "With this PATH the right program is found.",
            ),
            slip(
                "verification_failure",
                f'export PATH="{first}:$PATH" && type -P {name_of} | grep -q {new}',
                "It is found in the right place now.",
            ),
            misplaced(command, script),
        ),
    )
    return files, (), step


def _wrapper(rng: random.Random, place: Place) -> Drawn:
    stem, option = (
        f"{rng.choice(words.STEMS)}-{rng.choice(words.PRODUCTS)}",
        f"--{rng.choice(words.TERMS)}={rng.randint(2, 99)}",
    )
    program = text_file(
        place,
        f"lib/{stem}",
        '#!/bin/bash\nfor argument in "$@"; do\n  printf "[%s]" "$argument"\ndone\necho\n',
        mode=0o755,
    )
    wrapper, target = f"bin/{stem}", f"{place.directory}/bin/{stem}"
    body = f"exec {program.path} {option} {{arguments}}"

    def write(line: str) -> str:
        return f"mkdir -p bin && printf '#!/bin/bash\\n%s\\n' '{line}' > {wrapper}"

    right = write(body.format(arguments='"$@"'))
    given = ["two words", words.phrase(rng, 2, 3), "*", "--last", ""]
    step = Step(
        says=(
            f"Create an executable script {target} that runs {program.path} with {option} as its first argument, followed by all arguments of the script, unchanged (blanks, asterisks and empty ones too).",
            f"Put a wrapper at {target}, executable, for {program.path}: first {option}, then exactly the arguments that the wrapper got, also if they are empty or hold blanks or asterisks.",
            f"I'd like to call {target} and have it run {program.path} with {option} in front of whatever arguments I give, untouched whether they have blanks or asterisks in them or are empty. It must be executable.",
        ),
        thought='"$@" in quotes passes every argument as it is; then the execute bit.',
        command=f"{right} && chmod 755 {wrapper}",
        checks=(
            check(
                target,
                "passes_arguments",
                f"given = {given!r}",
                "read_bytes(path)",
                "assert os.stat(path).st_mode & 0o100, f'{path} is not executable'",
                "found = run(path, *given)",
                f"assert found == ''.join(f'[{{part}}]' for part in [{option!r}, *given]) + '\\n', f'{{path}} passes on {{found}}'",
            ),
        ),
        mistakes=(
            slip(
                "command_error",
                f"{write(body.format(arguments='$@'))} && chmod 755 {wrapper}",
                "$@ stands for all arguments.",
            ),
            slip(
                "analysis_error",
                f"{write(body.format(arguments=chr(34) + '$*' + chr(34)))} && chmod 755 {wrapper}",
                "Quotes keep the arguments together.",
            ),
            slip(
                "requirement_violation",
                f"{write(f'exec {program.path} {chr(34)}$@{chr(34)} {option}')} && chmod 755 {wrapper}",
                "Options can stand at the end as well.",
            ),
            slip("verification_failure", right, "The script is written, and bash can run it."),
        ),
    )
    return (program,), (), step


def _exports(rng: random.Random, place: Place) -> Drawn:
    key, value = (
        f"{rng.choice(words.PROJECTS).upper()}_TITLE",
        f"{rng.choice(words.CITIES).title()} & {words.phrase(rng, 2, 3)}",
    )
    program = text_file(
        place, f"lib/show-{rng.choice(words.TERMS)}", f'#!/bin/bash\nprintf "%s\\n" "${key}"\n', mode=0o755
    )
    file = f"{rng.choice(words.TEAMS)}.env"
    target = f"{place.directory}/{file}"
    command = f"echo 'export {key}=\"{value}\"' > {file}"
    step = Step(
        says=(
            f"Write {target}: sourced in bash, it has to make {program.path} (started after that) see the variable {key} with the value `{value}`.",
            f"Create {target} for bash to source. It sets {key} to `{value}` in such a way that programs like {program.path}, started later in that shell, get it.",
            f"After sourcing {target} in bash, {program.path} should print `{value}`, which it takes from its environment variable {key}. That file is what I need.",
        ),
        thought="A program gets only exported variables, and the ampersand has to be quoted.",
        command=command,
        checks=(
            check(
                target,
                "reaches_programs",
                "read_bytes(path)",
                f"found = run('bash', '-c', '. \"$1\" && \"$2\"', 'bash', path, {program.path!r})",
                f"assert found == {value + chr(10)!r}, f'the program sees {{found!r}}'",
            ),
        ),
        mistakes=(
            slip(
                "analysis_error",
                f"echo '{key}=\"{value}\"' > {file}",
                "A variable that is set in the shell is there for programs.",
            ),
            slip("command_error", f"echo 'export {key}={value}' > {file}", "The value needs no quotes."),
            slip(
                "verification_failure",
                f"export {key}='{value}' && {program.path.removeprefix(place.directory + '/')}",
                "The program prints the right text.",
            ),
            misplaced(command, file),
        ),
    )
    return (program,), (), step


def _resolve(rng: random.Random, place: Place) -> Drawn:
    folders = words.distinct(rng, words.AREAS, 4)
    commands = [f"{term}-{rng.choice(words.TERMS)}" for term in words.distinct(rng, words.STEMS, 6)]
    stem = rng.choice(words.PROJECTS)
    owners = {command: sorted(rng.sample(range(4), rng.randint(1, 3))) for command in commands[:5]}
    files, found = [], {commands[5]: "-"}
    for command, places in owners.items():
        runnable = [index for index in places if index == places[-1] or rng.random() < 0.5]
        files += [
            text_file(
                place, f"{stem}/{folders[index]}/{command}", "#!/bin/sh\n", mode=0o755 if index in runnable else 0o644
            )
            for index in places
        ]
        found[command] = f"{place.directory}/{stem}/{folders[runnable[0]]}/{command}"
    rng.shuffle(commands)
    path = ":".join(f"{place.directory}/{stem}/{folder}" for folder in folders)
    files += [
        text_file(place, f"{stem}.path", f"{path}\n"),
        text_file(place, f"{stem}.commands", "".join(f"{command}\n" for command in commands)),
    ]
    target = f"{place.directory}/{stem}.found"
    loop = f'while read -r name; do echo "$name $({{look}} || echo -)"; done < {stem}.commands'
    search = f'PATH=$(cat {stem}.path) type -P "$name"'
    step = report(
        place,
        f"{stem}.found",
        [f"{command} {found[command]}" for command in commands],
        loop.format(look=search),
        says=(
            f"Suppose PATH were the text in {place.directory}/{stem}.path: for each name in {place.directory}/{stem}.commands write to {target} the name, one blank and the full path of the file that bash would run, or `-` if it finds none; same order.",
            f"Take the search path in {place.directory}/{stem}.path and tell what bash would run for each of the names in {place.directory}/{stem}.commands: lines `name /full/path` in {target}, in the same order, with `-` instead of the path where there is nothing to run.",
            f"With {place.directory}/{stem}.path as PATH, which file would bash start for the names listed in {place.directory}/{stem}.commands? Name, blank and full path (or `-` when there is none), line by line in the same order, in {target}.",
        ),
        thought="type -P searches PATH the way bash does, execute bit included.",
        slips=(
            (
                "analysis_error",
                loop.format(look=f'find {stem} -name "$name" | tail -1 | grep .'),
                "I look for the files by name.",
            ),
            ("command_error", loop.format(look='type -P "$name"'), "type -P gives the path of a program."),
        ),
    )
    return tuple(files), (), step


def _switch(rng: random.Random, place: Place) -> Drawn:
    product = rng.choice(words.SERVICES)
    old, new = (f"{product}-{rng.randint(low, low + 4)}.{rng.randint(0, 9)}" for low in (1, 6))
    files = tuple(_program(place, f"{version}/run", version) for version in (old, new))
    link, target = f"{product}-current", f"{place.directory}/{product}-current"
    step = Step(
        says=(
            f"Point the symbolic link {target} to the directory {place.directory}/{new} instead of {place.directory}/{old}.",
            f"Switch {target}, a symbolic link to {place.directory}/{old}, over to {place.directory}/{new}.",
            f"We move to a new version: the link {target} should lead to {place.directory}/{new}, not to {place.directory}/{old} any more.",
        ),
        thought="The link leads to a directory, so ln needs -n to replace the link itself.",
        command=f"ln -sfn {new} {link}",
        checks=(target_is(target, f"{place.directory}/{new}"),),
        mistakes=(
            slip("command_error", f"ln -sf {new} {link}", "-f replaces the link that is there.", f"rm {old}/{new}"),
            slip(
                "requirement_violation",
                f"rm {link} && cp -r {new} {link}",
                "A copy under that name does the same.",
                f"rm -r {link}",
            ),
            slip("verification_failure", f"ls -d {new} {link}/", "Both are there and can be listed."),
        ),
    )
    return files, (f"ln -s {old} {link}",), step

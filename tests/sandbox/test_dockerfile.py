"""Dockerfile text to steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.base import BASE_DOCKERFILE
from sandbox.dockerfile import Copy, DockerfileError, MakeDirectory, Recipe, Run, expand, parse, split_words
from sandbox.errors import BuildUnsupported

PATH = "/usr/bin:/bin"


def read(*lines: str) -> Recipe:
    return parse("\n".join(["FROM base", *lines, ""]), engine="test", environment={"PATH": PATH})


def only(*lines: str) -> Run | Copy | MakeDirectory:
    (step,) = read(*lines).steps
    return step


def script(*lines: str) -> str:
    step = only(*lines)
    assert isinstance(step, Run)
    assert step.argv[:2] == ("/bin/sh", "-c")
    return step.argv[2]


def test_a_step_carries_the_state_at_its_place():
    recipe = read(
        "ENV A=1", "RUN one", "USER agent", "WORKDIR /srv", "WORKDIR sub/../app", "ARG B=2", "ENV A=3", "RUN two"
    )
    one, srv, app, two = recipe.steps
    assert (one.env, one.cwd, one.user) == ({"A": "1"}, "/", "root")
    assert (srv.path, app.path, app.owner) == ("/srv", "/srv/app", "agent")
    assert (two.env, two.cwd, two.user) == ({"A": "3", "B": "2"}, "/srv/app", "agent")
    assert (recipe.base, recipe.workdir, recipe.env, recipe.user) == ("base", "/srv/app", {"A": "3"}, "agent")


def test_run_in_exec_form_takes_no_shell_and_no_variables():
    assert only("ENV A=1", 'RUN ["echo", "$A", "x y"]').argv == ("echo", "$A", "x y")
    assert script("RUN [ -f /etc/passwd ]") == "[ -f /etc/passwd ]"
    assert only('SHELL ["/bin/bash", "-ec"]', "RUN x").argv == ("/bin/bash", "-ec", "x")


def test_run_text_reaches_the_shell_untouched():
    assert (
        script("ENV A=1", "RUN echo $A ${B:-x} 'it''s' \"q\" | tr a b # c")
        == "echo $A ${B:-x} 'it''s' \"q\" | tr a b # c"
    )


def test_lines_continue_over_comments_and_blank_lines():
    assert script("RUN one && \\", "  # a comment", "", "  two \\  ", "  && three") == "one &&   two   && three"
    assert script("run lower case") == "lower case"
    assert read("# only a comment", "", "   # another").steps == ()


def test_here_documents_go_to_the_shell_or_are_the_script():
    assert script("RUN cat <<EOF > /x", "a $B \\", "# kept", "EOF") == "cat <<EOF > /x\na $B \\\n# kept\nEOF\n"
    assert script("RUN <<'END'", "one", "", "two", "END") == "one\n\ntwo\n"
    assert script("RUN <<-END", "\tone", "\tEND") == "one\n"
    assert script('RUN echo "a <<EOF b" $((1<<2)) <<<word') == 'echo "a <<EOF b" $((1<<2)) <<<word'
    with pytest.raises(DockerfileError, match="does not end"):
        read("RUN <<EOF", "x")


def test_copied_here_documents_expand_variables_unless_quoted():
    plain = only("ENV A=1", "COPY <<EOF /etc/x", "a=$A ${B:-none} \\$A 'q'", "EOF")
    assert (plain.sources, plain.inline[0].data, plain.target) == ((), b"a=1 none $A 'q'\n", "/etc/x")
    quoted = only("ENV A=1", "COPY <<'EOF' /etc/x", "a=$A", "EOF")
    assert quoted.inline[0].data == b"a=$A\n"


def test_env_has_two_forms_and_sees_what_came_before():
    assert read("ENV A=1 B=\"x y\" C=p\\ q D='$A' E=a$A-${A}").env == {
        "A": "1",
        "B": "x y",
        "C": "p q",
        "D": "$A",
        "E": "a-",
    }
    assert read("ENV A one two  three").env == {"A": "one two  three"}
    assert read("ENV PATH=/opt/bin:$PATH").env == {"PATH": f"/opt/bin:{PATH}"}
    assert read("ENV A=1", "ENV A=2 B=$A").env == {"A": "2", "B": "1"}


def test_arguments_before_from_must_be_asked_for_again():
    text = "ARG TAG=base\nARG OTHER=x\nFROM $TAG\nARG TAG\nRUN one\n"
    recipe = parse(text, engine="test", environment={})
    assert (recipe.base, recipe.steps[0].env) == ("base", {"TAG": "base"})


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("$A", "1"), ("${A}b", "1b"), ("$Ab", ""), ("${N:-x}", "x"), ("${E:-x}", "x"), ("${E-x}", ""), ("${A:+x}", "x"),
        ("${N:+x}", ""), ("${E+x}", "x"), ("${N:-$A}", "1"), ("\\$A", "$A"), ("'$A'", "$A"),
        ('"$A \\$A \\n"', "1 $A \\n"),
        ("a'b c'd", "ab cd"), ("$", "$"), ("it's", "it's"),
    ],
)  # fmt: skip
def test_words_expand_as_docker_does(word, value):
    assert expand(word, {"A": "1", "E": ""}) == value


@given(st.text(st.characters(exclude_characters="'\"\\$", exclude_categories=["Cs"]), max_size=30))
def test_text_without_marks_expands_to_itself(text):
    assert expand(text, {}) == text
    assert expand(f"'{text}'", {}) == text
    assert split_words(text) == text.split()


def test_copy_options_are_kept():
    copy = only("COPY --chown=agent:agent --chmod=0750 a b c/")
    assert (copy.owner, copy.mode, copy.sources, copy.target) == ("agent:agent", 0o750, ("a", "b"), "/c")
    copy = only("COPY a c")
    assert (copy.owner, copy.mode, copy.into_directory) == ("root", None, False)


@pytest.mark.parametrize(
    "line",
    [
        "FROM other", "COPY --from=x a b", "RUN --mount=type=cache,target=/x y", "ADD http://x/y /z", "ADD a.tar.gz /z",
        "ONBUILD RUN x", "RUN <<E\n#!/usr/bin/python3\nE",
    ],
)  # fmt: skip
def test_what_only_docker_can_build_is_refused_with_the_remedy(line):
    with pytest.raises(BuildUnsupported, match=r"the test engine cannot build .*Use the Docker engine"):
        read(line)


def test_another_escape_character_is_refused():
    with pytest.raises(BuildUnsupported, match="escape"):
        parse("# escape=`\nFROM base\n", engine="test", environment={})
    assert parse("# syntax=docker/dockerfile:1\nFROM base\n", engine="test", environment={}).base == "base"


@pytest.mark.parametrize(
    "line", ["NONSENSE x", "COPY a", "RUN", "ENV A", "ENV A=1 B", "SHELL bash", "COPY --chmod=rwx a b"]
)
def test_what_docker_refuses_too_is_a_mistake_of_the_author(line):
    with pytest.raises(DockerfileError):
        read(line)


def test_there_must_be_a_from():
    for text in ("", "RUN x\nFROM base\n"):
        with pytest.raises(DockerfileError, match="FROM"):
            parse(text, engine="test", environment={})


def test_instructions_for_running_a_service_change_nothing():
    assert (
        read(
            "CMD x", 'ENTRYPOINT ["x"]', "EXPOSE 80", "LABEL a=b", "VOLUME /x", "STOPSIGNAL 9", "HEALTHCHECK NONE"
        ).steps
        == ()
    )


@pytest.mark.parametrize("line", ['VOLUME ["/a", "/b"]', "VOLUME /a $PLACE"])
def test_volumes_are_known_and_change_no_step(line):
    recipe = read("ENV PLACE=/b", line)
    assert (recipe.volumes, recipe.steps) == (("/a", "/b"), ())


def test_the_base_itself_parses():
    recipe = parse(BASE_DOCKERFILE, engine="test", environment={})
    assert (recipe.base, len(recipe.steps)) == ("debian:bookworm-slim", 1)

"""Templates with versions, strict names and inert values."""

import jinja2
import pytest

from runtime.chat.prompts import PromptLibrary
from runtime.errors import UserError


@pytest.fixture
def library(tmp_path, monkeypatch):
    prompts = tmp_path / "some_package_with_prompts" / "prompts"
    prompts.mkdir(parents=True)
    (prompts.parent / "__init__.py").touch()
    (prompts / "greet.j2").write_text("{# version: 3 #}\nHello {{ name }}, run `a && b > c`.\n")
    (prompts / "bare.j2").write_text("no version\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return PromptLibrary("some_package_with_prompts")


def test_a_prompt_comes_with_name_version_and_hash(library):
    first, second = library.render("greet", name="A"), library.render("greet", name="B")
    assert (first.text, first.name, first.version) == ("Hello A, run `a && b > c`.", "greet", 3)
    assert first.sha256 == second.sha256


def test_values_are_never_templates_and_never_escaped(library):
    assert "{{ secret }} <b> & 'x'" in library.render("greet", name="{{ secret }} <b> & 'x'").text


def test_a_missing_value_is_an_error(library):
    with pytest.raises(jinja2.UndefinedError, match="name"):
        library.render("greet")


@pytest.mark.parametrize(("name", "problem"), [("bare", "no version"), ("absent", "no such template")])
def test_a_template_without_version_or_file_is_named(library, name, problem):
    with pytest.raises(UserError, match=problem):
        library.render(name)

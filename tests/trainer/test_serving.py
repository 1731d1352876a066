"""What is served comes from a whole model directory, or is refused in one line."""

import json
import shutil

import pytest

from runtime.errors import UserError
from tests.trainer.world import make_model
from trainer.recipe import ModelTable, Recipe, ServeTable
from trainer.serving import load_policy, open_encoder

RECIPE = Recipe(
    name="tiny", model=ModelTable(name="tiny", chat_format="small"), serve=ServeTable(engine="torch", max_running=4)
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def directory(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "policy")


def cut(directory):
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])


def lose(directory):
    (directory / "model.safetensors").unlink()


def describe(**other):
    def write(directory):
        path = directory / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | other))

    return write


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (cut, "header"),
        (lose, "no file named model.safetensors"),
        (describe(model_type="nobody"), "model type `nobody`"),
        (describe(hidden_size="wide"), "hidden_size"),
        (describe(hidden_size=64), "ignore_mismatched_sizes"),
        (describe(num_hidden_layers=2), "tensors are missing: model.layers.1"),
        (describe(num_attention_heads=0), "zero"),
    ],
)
def test_a_damaged_model_is_refused_in_one_line(directory, damage, why):
    load_policy(directory)
    damage(directory)
    with pytest.raises(UserError, match=rf"(?s)policy: no model can be loaded: .*{why}.*Hugging Face directory"):
        load_policy(directory)


@pytest.mark.parametrize("text", [b"{", b"{}", b"\xff\xfe"])
def test_a_damaged_tokeniser_is_refused_in_one_line(directory, text):
    open_encoder(RECIPE, directory)
    (directory / "tokenizer.json").write_bytes(text)
    with pytest.raises(UserError, match=r"tokenizer\.json: is no tokeniser that can be read"):
        open_encoder(RECIPE, directory)

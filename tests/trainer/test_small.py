"""The small policy: its tokeniser, what it is written as, and that it learns to copy names."""

import pytest
import torch

from generators.demonstrate import demonstrations
from generators.procedural.families.basics import NAMES, TERSE_PLACES
from runtime.errors import UserError
from trainer.batch import pad
from trainer.model import load_model
from trainer.sft import SFTConfig, example_of, fine_tune
from trainer.small import VOCABULARY, make_policy, read_demonstrations, texts_of, train_tokenizer
from trainer.tokens import FORMATS, Encoder


@pytest.fixture(scope="module")
def shown():
    return list(demonstrations(count=1500, seed=1, slips=0.75, levels=[1]))


@pytest.fixture(scope="module")
def policy(shown, tmp_path_factory):
    directory = tmp_path_factory.mktemp("policy") / "start"
    make_policy(shown, directory)
    return directory


@pytest.fixture
def encoder(policy):
    return Encoder(policy / "tokenizer.json", FORMATS["small"])


def test_a_policy_is_there_whole_or_not_at_all(shown, tmp_path, monkeypatch):
    def full(model, directory):
        directory.mkdir()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("trainer.small.save_model", full)
        with pytest.raises(OSError, match="No space"):
            make_policy(shown[:50], tmp_path / "start")
    assert not (tmp_path / "start").exists()
    make_policy(shown[:50], tmp_path / "start")
    assert [path.name for path in tmp_path.iterdir()] == ["start"]


def test_every_name_and_place_is_one_token_wherever_it_stands(encoder):
    for name in NAMES:
        alone = encoder.text(name)
        assert len(alone) == 1
        for text in (f"Append {name} to", f"s/{name}/", f"/home/agent/lab/{name}.txt"):
            assert alone[0] in encoder.text(text)
    assert {len(encoder.text(f" {place}/")) for place in TERSE_PLACES} == {1}


def test_any_text_survives_and_no_text_becomes_a_marker(encoder):
    for text in ("naïve ☃ \x00\x7f\n\t  end", "<|turn|>user<|end|>", "s/a/b/;/home/x/y z.tar.gz"):
        ids = encoder.text(text)
        assert encoder.decode(ids) == text
        assert not set(ids) & set(encoder.stop_ids)


def test_the_vocabulary_is_small_and_the_same_each_time(shown):
    texts = list(texts_of(shown))
    one, two = train_tokenizer(texts), train_tokenizer(texts)
    assert one.to_str() == two.to_str()
    assert one.get_vocab_size() <= VOCABULARY


def test_transformers_loads_the_directory(policy, encoder):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(policy, local_files_only=True)
    text = "Copy /home/agent/lab/ant.txt to /home/agent/ops/bee.md.\n"
    assert tuple(tokenizer(text, add_special_tokens=False)["input_ids"]) == encoder.text(text)
    assert tokenizer.decode(encoder.text(text)) == text
    model = load_model(policy)
    assert model.config.eos_token_id == tokenizer.eos_token_id == encoder.stop_ids[0]
    assert 0.8e6 < sum(parameter.numel() for parameter in model.parameters()) < 1.2e6


def test_files_without_demonstrations_are_refused(tmp_path):
    (tmp_path / "none.jsonl").write_text("\n")
    with pytest.raises(UserError, match="hold no trajectory"):
        read_demonstrations([tmp_path / "none.jsonl"])
    with pytest.raises(UserError, match="No such file"):
        read_demonstrations([tmp_path / "missing.jsonl"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_names_are_copied_after_a_hundred_steps(shown, policy, encoder):
    model, names = load_model(policy), torch.tensor([encoder.text(name)[0] for name in NAMES])
    config = SFTConfig(learning_rate=3e-3, batch=32, epochs=3, weight_decay=0.01, row_tokens=512, max_tokens=256)
    asked = [example_of(d, encoder) for d in demonstrations(count=96, seed=2, slips=0.0, levels=[1])]
    ids, weights = (
        pad([getattr(e, f) for e in asked], kind) for f, kind in (("ids", torch.int64), ("weights", torch.float32))
    )

    def copied():
        with torch.no_grad():
            guessed = model(ids, use_cache=False).logits[:, :-1].argmax(-1) == ids[:, 1:]
        return float(guessed[torch.isin(ids[:, 1:], names) & (weights[:, 1:] > 0)].float().mean())

    before = copied()
    fine_tune(model, [example_of(d, encoder) for d in shown], config)
    assert before < 0.2
    assert copied() > 0.5


def test_the_commands_make_a_policy_from_nothing(tmp_path, capsys):
    from runtime.cli import run

    shown, out = tmp_path / "shown.jsonl", tmp_path / "start"
    assert run(["demonstrate", "--count", "30", "--slips", "0.5", "--out", str(shown)]) == 0
    assert run(["new-policy", "--demonstrations", str(shown), "--out", str(out)]) == 0
    assert (out / "model.safetensors").is_file()
    assert "30 demonstrations with" in capsys.readouterr().err
    assert run(["new-policy", "--demonstrations", str(shown), "--out", str(out)]) == 2
    assert "is there already" in capsys.readouterr().err

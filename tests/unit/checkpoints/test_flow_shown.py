"""What people see of a flow: labels that can be read, titles, moments that are where they say, early refusals on the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from metastable import checkpoints
from metastable.checkpoints.flows.lens import names_of
from metastable.checkpoints.flows.plan import name_layers
from metastable.cli.checkpoints import geometry, spectrum
from metastable.cli.flow import flow
from metastable.cli.meaning import meaning
from metastable.errors import CheckpointError, InvalidInputError, StoreError
from tests.unit.checkpoints.flow_models import DECODER, build

IDS = [5, 9, 17, 33, 60, 9, 12, 41, 7, 28, 3, 50]


def byte_level():
    """A byte-level tokenizer whose only merges are a space with a letter, and two of the three bytes of a curly apostrophe."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "a"), ("â", "Ģ")]
    vocabulary = {name: place for place, name in enumerate([*alphabet, *(one + two for one, two in merges)])}
    made = Tokenizer(models.BPE(vocabulary, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made)


def test_names_of_byte_level_tokens_can_be_read() -> None:
    from metastable.figures.flow_view import token_label

    tokenizer = byte_level()
    ids = tokenizer("it’s a\n é")["input_ids"]
    assert "âĢ" in tokenizer.convert_ids_to_tokens(ids)  # what used to be shown
    names = names_of(tokenizer, ids)
    assert names[:5] == ("i", "t", "\\xe2\\x80", "\\x99", "s")
    assert names[5:7] == (" a", "↵")
    assert not any(letter in name for name in names for letter in "ĠâĢĻĊ")
    assert [token_label(name) for name in names[5:8]] == ["a", "↵", "␣"]
    assert token_label("$5$") == r"\$5\$"
    assert names_of(tokenizer, tokenizer("’")["input_ids"][:1]) == ("\\xe2\\x80",)


def test_a_run_names_its_tokens_in_letters() -> None:
    """Not in the alphabet of a byte-level tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = byte_level()
    model = LlamaForCausalLM(LlamaConfig(**{**DECODER, "vocab_size": len(tokenizer)})).eval()
    run = checkpoints.flow(model, tokenizer=tokenizer).run("b a a")
    assert run.text == ("b", " a", " a")


def test_one_head_and_given_states_are_drawn(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {**DECODER, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8}
    run = checkpoints.flow(LlamaForCausalLM(LlamaConfig(**sizes)).eval()).run(IDS, layer=1, until=2.0)
    title = run.plot()._suptitle.get_text()
    assert "llama, layer 1, all parts" in title
    run.animate(tmp_path / "film.gif", seconds=0.1)
    assert (tmp_path / "film.gif").stat().st_size > 1000
    given = checkpoints.from_states(run.hidden)
    assert given.plot()._suptitle.get_text() == "$n = 12$, $d = 24$, given states, causal"
    assert "full" in checkpoints.from_states(run.hidden, causal=False).plot()._suptitle.get_text()


def test_layers_in_words() -> None:
    assert name_layers([3]) == "layer 3"
    assert name_layers([2, 3, 4]) == "layers 2 to 4"
    assert name_layers([0, 5]) == "layers 0, 5"
    assert name_layers([2, 1]) == "layers 2, 1"
    assert name_layers([0, 2, 4, 6, 8, 10, 12, 14, 16, 18]) == "layers 0, 2, 4, 6, 8, 10, ..., 18"
    run = checkpoints.flow(build("llama")).run(IDS, layers=[0, 2])
    assert run.dataset.attrs["flow"] == "layers 0, 2, all parts"


def test_moments_are_measured_where_they_say() -> None:
    from metastable.reports.flow_study import loop_times, moments

    for until in (0.5, 10.0, 200.0):
        times = loop_times(until)
        assert set(moments(until)) <= set(times)
        assert (np.diff(times) > 0).all()
    assert moments(200.0) == [1.0, 10.0, 30.0, 100.0, 200.0]


def test_marks_of_the_sign_grid_are_explained() -> None:
    from metastable.figures.flow_view import sign_grid_page

    found = _heads(1, 2)
    page = sign_grid_page(found)
    words = " ".join(text.get_text() for legend in page.legends for text in legend.get_texts())
    assert "more alike than in random heads" in words
    assert "p ≤ 0.05" in words


def _heads(layers: int, heads: int):
    import xarray as xr

    shape = (layers, heads, 1)
    return xr.Dataset(
        {
            "sign_score": (("layer", "head"), np.full(shape[:2], 0.5)),
            "alike": (("layer", "head", "mode"), np.full(shape, 0.5)),
            "alike_p": (("layer", "head", "mode"), np.full(shape, 0.01)),
            "alike_usual": (("layer", "head", "mode"), np.zeros(shape)),
        },
        coords={"layer": np.arange(layers), "head": np.arange(heads)},
    )


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("a text of a few words\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("command", [flow, geometry, meaning, spectrum])
def test_commands_refuse_before_a_model_is_looked_for(command, text: Path, tmp_path: Path) -> None:
    """A folder that cannot be written to, a seed that is none, a file without a word: the model's name is not even looked at."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(StoreError, match="choose another folder"):
        command("./no such model", out=blocked / "below")
    with pytest.raises(StoreError, match="choose another folder"):
        command("./no such model", out=Path("/proc/report"))
    assert not (tmp_path / "report").exists()
    with pytest.raises(CheckpointError):
        command("./no such model", out=tmp_path / "report")
    assert not (tmp_path / "report").exists()
    with pytest.raises(InvalidInputError, match="--seed"):
        command("./no such model", seed=-1)
    if command is not spectrum:
        text.write_text(" \n\n", encoding="utf-8")
        with pytest.raises(InvalidInputError, match="holds no text"):
            command("./no such model", text=text)


@pytest.mark.parametrize(
    "options",
    [{"drop_dims": -1}, {"permutations": 1}, {"center": "middle"}, {"delta": 4.0}, {"max_tokens": 1}],
)
def test_geometry_refuses_before_a_model_is_looked_for(options: dict) -> None:
    with pytest.raises(InvalidInputError, match="--" + next(iter(options)).replace("_", "-")):
        geometry("./no such model", **options)


def test_a_misspelt_name_gets_a_suggestion(monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name, wanted in (("smolm2", "smollm2"), ("SmolLM2", "smollm2"), ("mini-lm", "minilm")):
        with pytest.raises(CheckpointError, match=f"Did you mean '{wanted}'"):
            checkpoints.load_weights(name)
    with pytest.raises(CheckpointError) as refused:
        checkpoints.load_weights("owner/other")
    assert "Did you mean" not in str(refused.value)


def test_word_lists_of_the_table_can_be_taken_apart(tmp_path: Path) -> None:
    """Words with spaces, bars and commas in them come back as they were."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from metastable.reports import meaning_page

    tokenizer = byte_level()
    model = LlamaForCausalLM(LlamaConfig(**{**DECODER, "vocab_size": len(tokenizer)})).eval()
    found = checkpoints.meaning(checkpoints.flow(model, tokenizer=tokenizer), words=60, draws=20)
    meaning_page.write(tmp_path, found, "tiny")
    rows = list(csv.DictReader((tmp_path / "meaning.csv").open(encoding="utf-8", newline="")))
    for row in rows:
        at = {"layer": int(row["layer"]), "head": int(row["head"]), "mode": int(row["mode"])}
        for side in ("read", "written"):
            assert json.loads(row[side]) == found[side].sel(at).values.tolist()


def test_a_model_of_one_head_has_a_page(tmp_path: Path, recwarn) -> None:
    """Words, picture and sentences where there are too few heads for most tests: no NaN, no plural of one."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from metastable.reports import meaning_page

    tokenizer = byte_level()
    sizes = {**DECODER, "vocab_size": len(tokenizer), "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8}
    source = checkpoints.flow(LlamaForCausalLM(LlamaConfig(**sizes)).eval(), tokenizer=tokenizer)
    for name, layer in (("three", None), ("one", 1)):
        found = checkpoints.meaning(source, layer, draws=20, words=4)
        meaning_page.write(tmp_path / name, found, "tiny")
        page = (tmp_path / name / "meaning.html").read_text(encoding="utf-8")
        assert "nan" not in page.split("base64")[0]
        assert "1 head each" in page
        assert "1 heads" not in page
    assert "Too few heads for tests over heads" in page
    assert not [warning for warning in recwarn if issubclass(warning.category, RuntimeWarning)]


def test_controls_are_no_empty_boxes() -> None:
    tokenizer = byte_level()
    names = names_of(tokenizer, range(len(tokenizer)))
    assert all(name.isprintable() for name in names)
    assert len(set(names)) == len(names)


def test_the_page_explains_its_rows(tmp_path: Path) -> None:
    """Half the temperature, what the nulls of the loop are, and how far words can be trusted."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = byte_level()
    LlamaForCausalLM(LlamaConfig(**{**DECODER, "vocab_size": len(tokenizer)})).save_pretrained(tmp_path / "tiny")
    tokenizer.save_pretrained(tmp_path / "tiny")
    words = tmp_path / "text.txt"
    words.write_text("it’s a $1 or $2 page", encoding="utf-8")
    flow(str(tmp_path / "tiny"), text=words, layer=1, until=31.0, out=tmp_path / "out")
    page = " ".join((tmp_path / "out" / "report.html").read_text(encoding="utf-8").split())
    for said in ("attention only, the nulls too", "twice as sharp", "rough reading", "at t = 30, "):
        assert said in page
    with (tmp_path / "out" / "curves.csv").open(encoding="utf-8") as file:
        times = {float(row["time"]) for row in csv.DictReader(file) if row["run"] == "loop"}
    assert {1.0, 10.0, 30.0, 31.0} <= times

"""`metastable flow` and `metastable meaning` on a tiny model: tables, pages that stand alone, pictures, and what is refused."""

from __future__ import annotations

import csv
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from metastable.cli.app import COMMANDS, build
from metastable.cli.flow import flow
from metastable.cli.meaning import meaning
from metastable.errors import ContextLengthError, InvalidInputError, StoreExistsError, UnknownArchitectureError
from metastable.reports.flow_study import loop_times
from tests.unit.checkpoints.flow_models import VOCABULARY
from tests.unit.checkpoints.flow_models import build as build_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A tiny Llama with a word-level tokenizer, saved."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    place = tmp_path_factory.mktemp("llama")
    build_model("llama").save_pretrained(place)
    vocabulary = {"[UNK]": 0, "[PAD]": 1} | {f"w{i}": i for i in range(2, VOCABULARY - 1)} | {"<b>$": VOCABULARY - 1}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]").save_pretrained(place)
    return place


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Twenty tokens, one of which would break a page that does not escape."""
    path = tmp_path / "text.txt"
    path.write_text("<b>$ " + " ".join(f"w{2 + (7 * i) % 50}" for i in range(19)), encoding="utf-8")
    return path


def stands_alone(page: str) -> None:
    assert "<script" not in page
    assert not re.search(r'(src|href)="(?!data:image/png;base64,|#)', page)
    assert 'name="viewport"' in page
    assert "<b>$" not in page


def test_flow_writes_a_report_that_stands_alone(folder: Path, text: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    flow(str(folder), text=text, layer=1, until=20.0, out=out)
    shown = capsys.readouterr().out
    for words in ("whole stack", "layer 1 looped to t = 20", "attention only", "null: random weights"):
        assert words in shown
    page = (out / "report.html").read_text(encoding="utf-8")
    stands_alone(page)
    assert page.count("data:image/png;base64,") == 5
    assert "text.txt, 19 tokens counted" in " ".join(page.split())
    rows = list(csv.DictReader((out / "what-if.csv").open()))
    assert len(rows) == 12
    assert all(row["status"] == "" and -1 <= float(row["cosine"]) <= 1 for row in rows)
    curves = list(csv.DictReader((out / "curves.csv").open()))
    assert {row["time"] for row in curves if row["run"] == "stack"} == {"0.0", "1.0", "2.0", "3.0"}
    assert (out / "parts.csv").is_file()
    for name in ("what-if", "merges-model", "merges-attention", "merges-loop", "parts"):
        assert (out / f"{name}.png").stat().st_size > 5000
    with pytest.raises(StoreExistsError, match="--overwrite"):
        flow(str(folder), text=text, out=out)


def test_flow_says_what_it_leaves_out(tmp_path: Path, capsys) -> None:
    """A model without a tokenizer and a text that does not fit are refused by name; parallel layers have fewer pictures, not none."""
    place = tmp_path / "llama"
    build_model("llama").save_pretrained(place)
    with pytest.raises(InvalidInputError, match="no tokenizer"):
        flow(str(place))
    with pytest.raises(InvalidInputError, match="no text file"):
        flow(str(place), text=tmp_path / "nothing.txt")


def test_flow_refuses_before_work(folder: Path, text: Path, tmp_path: Path) -> None:
    text.write_text(" ".join(["w3"] * 40), encoding="utf-8")
    with pytest.raises(ContextLengthError, match="max_tokens=32"):
        flow(str(folder), text=text, max_tokens=40)
    with pytest.raises(InvalidInputError, match="layers 0 to 2"):
        flow(str(folder), text=text, max_tokens=8, layer=9)
    with pytest.raises(InvalidInputError, match="radius"):
        flow(str(folder), text=text, radius=0.0)
    unknown = Path(shutil.copytree(folder, tmp_path / "unknown"))
    (unknown / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises((UnknownArchitectureError, OSError)):
        flow(str(unknown), text=text)


def test_loop_times_end_where_they_should() -> None:
    for until in (0.5, 20.0, 200.0, 1e6):
        times = loop_times(until)
        assert (times[0], times[-1]) == (0.0, until)
        assert (np.diff(times) > 0).all()


def test_meaning_writes_a_page_that_stands_alone(folder: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    meaning(str(folder), words=4, out=out)
    shown = " ".join(capsys.readouterr().out.split())
    assert "Mean likeness" in shown
    page = (out / "meaning.html").read_text(encoding="utf-8")
    stands_alone(page)
    assert page.count("<td style=") == 12
    for layer in range(3):
        for head in range(4):
            assert f'href="#h{layer}-{head}"' in page
            assert f'id="h{layer}-{head}"' in page
    rows = list(csv.DictReader((out / "meaning.csv").open()))
    assert len(rows) == 12
    assert all(len(row["read"].split()) == 4 for row in rows)
    for name in ("sign-grid", "likeness"):
        assert (out / f"{name}.png").stat().st_size > 5000
    with pytest.raises(StoreExistsError, match=r"meaning\.html"):
        meaning(str(folder), out=out)


def test_meaning_of_one_head(folder: Path, text: Path, capsys) -> None:
    meaning(str(folder), layer=1, head=2, modes=2, words=3, text=text)
    shown = capsys.readouterr().out
    assert "1.2" in shown
    assert "Mean likeness" not in shown


def test_commands_are_listed() -> None:
    assert {"flow", "meaning"} <= set(COMMANDS)
    for name in ("flow", "meaning"):
        assert build([name]) is not None

"""`metastable flow` and `metastable meaning` on a tiny model: tables, pages that stand alone, pictures, and what is refused."""

from __future__ import annotations

import csv
import json
import re
import shutil
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from metastable.cli.app import COMMANDS, build
from metastable.cli.checkpoints import geometry
from metastable.cli.flow import flow
from metastable.cli.meaning import meaning
from metastable.errors import ContextLengthError, InvalidInputError, StoreExistsError, UnknownArchitectureError
from metastable.reports import flow_page, flow_study
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


def test_bars_of_a_flow_move_to_their_ends(folder: Path, text: Path, tmp_path: Path, monkeypatch) -> None:
    """Loading, the decomposition and the last pictures were never reported, and pages were rendered behind the bar."""
    heard: dict[str, list[float]] = {}
    totals: dict[str, float] = {}

    @contextmanager
    def bar(description, total, show=None):
        totals[description] = total
        yield heard.setdefault(description, []).append

    for module in (flow_study, flow_page):
        monkeypatch.setattr(module, "progress_bar", bar)
    flow(str(folder), text=text, layer=1, until=20.0, out=tmp_path / "out")
    assert heard["flow"][0] == 1.0
    assert heard["flow"][-2:] == [totals["flow"] - 1.0, totals["flow"]]
    assert heard["flow"] == sorted(heard["flow"])
    assert heard["pictures"] == [float(place) for place in range(1, 16)]
    assert totals["pictures"] == 15.0


def test_flow_writes_a_report_that_stands_alone(folder: Path, text: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    flow(str(folder), text=text, layer=1, until=20.0, out=out)
    told = capsys.readouterr()
    shown = told.out
    # Without a terminal there is no bar: a line for each run says where the work is.
    assert told.err.splitlines()[:2] == [f"loading {folder}", "run 1 of 12: stack, the model"]
    assert "run 12 of 12: loop, null: random weights" in told.err
    for words in ("whole stack", "layer 1 looped to t = 20", "attention only", "null: random weights"):
        assert words in shown
    page = (out / "report.html").read_text(encoding="utf-8")
    stands_alone(page)
    assert page.count("data:image/png;base64,") == 5
    # What the loop is and how long it lasts; a legend that a phone shows.
    assert "dx/dt = F(x) − x" in page
    assert "Tsit5" in page
    assert "below 0.001 of each token" in page
    assert "for ever" not in page
    assert page.count('<ul class="key">') == 2
    for name in ("the model", "with its feed-forward part", "null: random weights"):
        assert f"</i>{name}</li>" in page
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


def test_flow_says_what_it_leaves_out(folder: Path, text: Path, tmp_path: Path, capsys) -> None:
    """A model whose parts cannot be told apart has a page with what can be run, and says what was left out and why."""
    from transformers import PhiConfig, PhiForCausalLM

    place = Path(shutil.copytree(folder, tmp_path / "phi"))
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "resid_pdrop": 0.0,
    }
    PhiForCausalLM(PhiConfig(vocab_size=VOCABULARY, **sizes)).save_pretrained(place)
    out = tmp_path / "out"
    flow(str(place), text=text, layer=1, until=2.0, out=out, quiet=True)
    assert "run 1 of 12" not in capsys.readouterr().err
    page = (out / "report.html").read_text(encoding="utf-8")
    left_out = page[page.index("<h2>Left out</h2>") :]
    for name in ("stack: attention only", "stack: feed-forward only", "loop: attention only", "decomposition"):
        assert f"<li>{name}: the parts of layers." in left_out
        assert "cannot be told apart" in left_out
    assert "<li>stack: the model:" not in left_out
    rows = {(row["run"], row["variant"]) for row in csv.DictReader((out / "what-if.csv").open())}
    assert ("whole stack", "the model") in rows
    assert ("layer 1 looped to t = 2", "with its feed-forward part") in rows
    assert not any("attention only" in variant for _, variant in rows)
    assert {path.stem for path in out.glob("*.png")} == {"what-if", "merges-model"}
    assert not (out / "parts.csv").exists()


def test_flow_needs_a_tokenizer_and_a_text(tmp_path: Path) -> None:
    place = tmp_path / "llama"
    build_model("llama").save_pretrained(place)
    with pytest.raises(InvalidInputError, match=r"llama has no tokenizer.*tokenizer\.json.*into the folder"):
        flow(str(place))
    with pytest.raises(InvalidInputError, match="no text file"):
        flow(str(place), text=tmp_path / "nothing.txt")


@pytest.mark.parametrize("command", [flow, geometry])
def test_too_many_tokens_left_out_are_refused_early(command, folder: Path, text: Path, monkeypatch) -> None:
    """Before the model is loaded where --max-tokens tells, before it is run where only the text does."""
    from metastable import checkpoints

    def never(*given, **more):
        pytest.fail("the model was run")

    monkeypatch.setattr(checkpoints.Flow, "run", never)
    monkeypatch.setattr(checkpoints, "token_states", never)
    with pytest.raises(InvalidInputError, match="20 tokens, and --drop-first 30"):
        command(str(folder), text=text, max_tokens=32, drop_first=30)
    with pytest.raises(InvalidInputError, match="--max-tokens 8"):
        command("no such model", text=text, max_tokens=8, drop_first=7)
    with pytest.raises(InvalidInputError, match="drop-first"):
        command("no such model", text=text, drop_first=-1)


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
    assert all(len(json.loads(row["read"])) == 4 for row in rows)
    for name in ("sign-grid", "likeness"):
        assert (out / f"{name}.png").stat().st_size > 5000
    with pytest.raises(StoreExistsError, match=r"meaning\.html"):
        meaning(str(folder), out=out)


def test_meaning_of_one_head(folder: Path, text: Path, capsys) -> None:
    """As in the help's example: every mode on a line of its own, with a p that is not that of a pool of one."""
    meaning(str(folder), layer=1, head=2, modes=3, words=3, text=text)
    shown = capsys.readouterr().out
    for mode in range(1, 3):
        assert f"1.2 #{mode}" in shown
    assert "Mean likeness" not in shown
    values = [float(found) for found in re.findall(r"[+-][01]\.\d\d +([01]\.\d{3})", shown)]
    assert len(values) >= 2
    assert all(0 < value <= 1 for value in values)
    assert len(set(values)) > 1


def test_commands_are_listed() -> None:
    assert {"flow", "meaning"} <= set(COMMANDS)
    for name in ("flow", "meaning"):
        assert build([name]) is not None


def test_meaning_says_no_number_that_is_not_there(folder: Path, tmp_path: Path, capsys) -> None:
    """One layer has no depth, and heads of one kind have no others: what cannot be tested is not said."""
    from metastable import checkpoints
    from metastable.reports import meaning_page

    meaning(str(folder), layer=1, words=4, out=tmp_path / "out")
    shown = capsys.readouterr().out
    page = (tmp_path / "out" / "meaning.html").read_text(encoding="utf-8")
    for said in (shown, re.sub(r"base64,[^\"]*", "", page)):
        assert "Mean likeness" in said
        assert not re.search(r"\bnan\b", said)
        assert "with depth" not in said
    found = checkpoints.meaning(str(folder), words=4, draws=40)
    positive = found["is_real"].values & (found["eigenvalue"].values.real > 0)
    # Only heads of one kind, the others silent; and draws of one kind only.
    for kept in (positive, ~positive, np.ones_like(positive)):
        assert kept.sum() >= 3
        some = found.assign(alike=found["alike"].where(kept))
        one_kind = some.assign(alike_null=some["alike_null"].where(some["null_is_real"]))
        for data in (some, one_kind):
            lines = meaning_page.sentences(data)
            assert not any("nan" in line for line in lines), lines
            assert any("Mean likeness" in line for line in lines)


def test_meaning_of_the_most_negative_modes(folder: Path, tmp_path: Path, capsys) -> None:
    meaning(str(folder), which="most-negative", words=4, out=tmp_path / "out")
    shown = capsys.readouterr().out
    assert "most negative eigenvectors" in " ".join(shown.split())
    assert "suppresses" in shown
    rows = list(csv.DictReader((tmp_path / "out" / "meaning.csv").open()))
    assert all(float(row["eigenvalue_real"]) < 0 for row in rows)
    real = [row for row in rows if float(row["eigenvalue_imaginary"]) == 0]
    assert real
    assert all(len(set(json.loads(row["suppressed"])) - {""}) == 4 for row in real)
    with pytest.raises(InvalidInputError, match="which"):
        meaning(str(folder), which="least")

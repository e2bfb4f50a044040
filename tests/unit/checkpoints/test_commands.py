"""`metastable spectrum` and `metastable geometry` on the tiny models."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from metastable.cli.checkpoints import geometry, spectrum
from metastable.errors import InvalidInputError, StoreExistsError


@pytest.fixture
def words(tiny, tmp_path: Path) -> tuple[Path, Path]:
    """The tiny BERT with a word-level tokenizer of its own, and a text."""
    import shutil

    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = Path(shutil.copytree(tiny("bert")[1], tmp_path / "bert"))
    vocabulary = {"[UNK]": 0, "[PAD]": 1} | {f"w{i}": i for i in range(2, 64)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]").save_pretrained(folder)
    text = tmp_path / "text.txt"
    text.write_text(" ".join(f"w{2 + (7 * i) % 60}" for i in range(30)), encoding="utf-8")
    return folder, text


def test_spectrum_prints_tables_and_writes_files(tiny, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    spectrum(str(tiny("llama")[1]), null=True, out=out)
    shown = capsys.readouterr().out
    assert "3 layers, dim 24, 6 heads (2 key/value) of 4" in shown.replace("\n", " ")
    assert "null: haar" in shown
    rows = list(csv.DictReader((out / "spectrum.csv").open()))
    assert len(rows) == 18
    counts = json.loads((out / "counts.json").read_text())
    assert counts["heads"]["heads"] == 18
    assert counts["null_gaussian"]["heads"] == 18
    for name in ("spectra.png", "sign-scores.png"):
        assert (out / name).stat().st_size > 5000
    with pytest.raises(StoreExistsError, match="--overwrite"):
        spectrum(str(tiny("llama")[1]), out=out)
    spectrum(str(tiny("llama")[1]), out=out, overwrite=True)


def test_spectrum_of_one_layer(tiny, tmp_path: Path, capsys) -> None:
    spectrum(str(tiny("albert")[1]), layer=-1, out=tmp_path / "out")
    shown = capsys.readouterr().out
    assert "Layer 3" in shown
    assert "sharing 2 sets of weights" in shown.replace("\n", " ")
    assert not (tmp_path / "out" / "sign-scores.png").exists()
    with pytest.raises(InvalidInputError, match="layers 0 to 3"):
        spectrum(str(tiny("albert")[1]), layer=9)


def test_geometry_writes_a_report_that_stands_alone(words, tmp_path: Path, capsys) -> None:
    folder, text = words
    out = tmp_path / "out"
    geometry(str(folder), text=text, permutations=19, out=out)
    assert "Token cloud of 29 tokens" in capsys.readouterr().out
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "data:image/png;base64," in page
    assert "text.txt" in page
    assert "<script" not in page
    assert 'src="http' not in page
    rows = list(csv.DictReader((out / "geometry.csv").open()))
    assert [row["layer"] for row in rows] == ["0", "1", "2", "3"]
    assert rows[0]["beta_F"]
    assert not rows[3]["beta_F"]
    with pytest.raises(StoreExistsError):
        geometry(str(folder), text=text, out=out)


def test_geometry_refuses_bad_text(words, tmp_path: Path) -> None:
    folder, _ = words
    with pytest.raises(InvalidInputError, match="no text file"):
        geometry(str(folder), text=tmp_path / "nothing.txt")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInputError, match="UTF-8"):
        geometry(str(folder), text=tmp_path / "bytes")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreExistsError, match="is a file"):
        geometry(str(folder), out=tmp_path / "file")

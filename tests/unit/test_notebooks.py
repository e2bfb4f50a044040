"""The notebooks run from top to bottom, and what they hold is what they show."""

import ast
import json
import re
from pathlib import Path

import matplotlib as mpl
import pytest
import xarray as xr

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))


def test_there_are_three():
    assert len(NOTEBOOKS) >= 3


def _run(source, name, names):
    """Run a cell; what its last line shows, as a notebook would (None: nothing)."""
    *before, last = ast.parse(source).body
    silent = not isinstance(last, ast.Expr) or source.rstrip().endswith(";")
    if silent:
        before.append(last)
    exec(compile(ast.Module(before, []), name, "exec"), names)
    return None if silent else eval(compile(ast.Expression(last.value), name, "eval"), names)


def _check_stored(shown, outputs):
    """What readers see is what the code of today says, but for numbers, which are not the same on every machine."""
    stored = ["".join(output["data"]["text/plain"]) for output in outputs if output["output_type"] == "execute_result"]
    if shown is None or isinstance(shown, bool):
        return
    (text,) = stored
    if isinstance(shown, xr.Dataset):  # as wide as the window was: the names count
        assert all(re.search(rf"\b{name}\b", text) for name in shown.variables), "run the notebook again and save it"
    else:
        wordy, today = (re.sub(r"[-+.\de]*\d", "#", words) for words in (text, repr(shown)))
        assert wordy == today, "run the notebook again and save it"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    import matplotlib.pyplot as plt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plt, "show", lambda: None)
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    names: dict = {"__name__": "__main__"}
    pictures = stored = 0
    with mpl.rc_context({"backend": "agg"}):
        for number, cell in enumerate(cells):
            before = set(plt.get_fignums())
            source = "".join(cell["source"])
            shown = _run(source, f"{path.name}, cell {number}", names)
            _check_stored(shown, cell["outputs"])
            for figure in set(plt.get_fignums()) - before:
                plt.figure(figure).savefig(tmp_path / f"{number}-{figure}.png", dpi=40)
                pictures += 1
            stored += sum("image/png" in output.get("data", {}) for output in cell["outputs"])
        plt.close("all")
    assert pictures >= 1
    assert stored >= pictures, "run the notebook again and save it, so that readers see its pictures"
    assert not any(output["output_type"] == "error" for cell in cells for output in cell["outputs"])

"""The notebooks run from top to bottom, and what they hold is what they show."""

import json
from pathlib import Path

import matplotlib as mpl
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))


def test_there_are_three():
    assert len(NOTEBOOKS) >= 3


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
            exec(compile(source, f"{path.name}, cell {number}", "exec"), names)
            for figure in set(plt.get_fignums()) - before:
                plt.figure(figure).savefig(tmp_path / f"{number}-{figure}.png", dpi=40)
                pictures += 1
            stored += sum("image/png" in output.get("data", {}) for output in cell["outputs"])
        plt.close("all")
    assert pictures >= 1
    assert stored >= pictures, "run the notebook again and save it, so that readers see its pictures"
    assert not any(output["output_type"] == "error" for cell in cells for output in cell["outputs"])

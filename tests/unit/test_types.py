"""What users type has types that a type checker knows: `pyright --verifytypes`, the check behind `py.typed`."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import metastable

ROOMS = (
    "run",
    "model",
    "sphere",
    "starts",
    "analysis",
    "ensembles",
    "sweep",
    "theory",
    "figures",
    "reproduce",
    "errors",
)
"""The rooms that define what `metastable` exports (checkpoints reads files of other packages, which have no types)."""


def test_every_public_name_has_known_types():
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", "--ignoreexternal"]
    # An editable installation is a path that pyright does not follow.
    source = os.path.dirname(os.path.dirname(metastable.__file__))
    found = subprocess.run(
        [*command, "--verifytypes", "metastable"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": source},
    )
    report = json.loads(found.stdout)["typeCompleteness"]
    assert report["pyTypedPath"].endswith("py.typed")
    symbols = {item["name"]: item for item in report["symbols"]}
    public = [
        name for name in symbols if name.split(".")[1:2] == [] or name.split(".")[1] in ROOMS or name.count(".") == 1
    ]
    assert len(public) > 1000
    unknown = [
        f"{name}: {note['message']}"
        for name in public
        if not symbols[name]["isTypeKnown"]
        for note in symbols[name]["diagnostics"]
    ]
    assert not unknown, "\n".join(unknown)


def test_a_days_work_has_no_error_in_strict_mode(tmp_path):
    """`ms.merge_tree(run)` and `ms.classify(run)` were errors to a strict type checker: `Run` was no `Trajectory`."""
    shutil.copy(Path(__file__).parent / "data" / "a_days_work.py", tmp_path)
    source = os.path.dirname(os.path.dirname(metastable.__file__))
    command = [
        sys.executable,
        "-m",
        "pyright",
        "--pythonpath",
        sys.executable,
        "--project",
        str(tmp_path),
        "--outputjson",
    ]
    found = subprocess.run(
        [*command, str(tmp_path / "a_days_work.py")],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": source},
    )
    report = json.loads(found.stdout)
    assert report["summary"]["filesAnalyzed"] >= 1
    errors = [note["message"] for note in report["generalDiagnostics"] if note["severity"] == "error"]
    assert not errors, "\n".join(errors)

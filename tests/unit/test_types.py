"""What users type has types that a type checker knows: `pyright --verifytypes`, the check behind `py.typed`."""

import json
import os
import subprocess
import sys

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

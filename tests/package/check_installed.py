"""What a freshly installed package must do, asked in an environment that holds it and its own dependencies, nothing else.

    python tests/package/check_installed.py            # with the Python of that environment, away from the source tree

Needs neither pytest nor the source: README's first example is read from the package's own metadata. `make package` calls it.
"""

import importlib.util
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

EXTRAS = {
    "torch": ["torch"],
    "weights": ["gguf"],
    "transformers": ["transformers"],
    "sweep": ["distributed"],
    "explore": ["fastapi", "uvicorn"],
    "cuda": ["numba_cuda"],
}
"""Extra -> modules that are there when it is installed."""


def command(*words: str, code: int = 0) -> str:
    """Run `metastable ...` as a shell finds it; returns what it printed."""
    program = Path(sysconfig.get_path("scripts")) / ("metastable.exe" if sys.platform == "win32" else "metastable")
    done = subprocess.run([str(program), *words], capture_output=True, text=True)
    assert done.returncode == code, (
        f"metastable {' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    )
    return done.stdout + done.stderr


def said(action: Callable[[], object]) -> str:
    """The message of the error that `action` raises."""
    from metastable.errors import MetastableError

    try:
        action()
    except MetastableError as error:
        return str(error)
    raise AssertionError("this should have been refused")


def readme_example() -> None:
    """The first example of the README, as PyPI shows it."""
    text = metadata.metadata("metastable").get_payload()
    block = re.search(r"^```python\n(.*?)^```", str(text), re.MULTILINE | re.DOTALL)
    assert block is not None
    exec(compile(block.group(1), "README.md", "exec"), {"__name__": "readme"})


def commands() -> None:
    """The commands that need no extra."""
    import metastable

    assert command("--version").strip() == f"metastable {metastable.__version__}"
    command("simulate", "--tokens", "50", "--beta", "16", "--until", "20", "--out", "run.zarr", "--plot", "run.png")
    assert Path("run.zarr").is_dir()
    assert Path("run.png").stat().st_size > 10_000
    assert "figure-1" in command("reproduce", "--list")
    info = command("info")
    for extra, modules in EXTRAS.items():
        if any(importlib.util.find_spec(module) is None for module in modules):
            assert re.search(rf"\[{extra}\]", info), f"metastable info does not name the extra {extra}\n{info}"


def missing_extras() -> list[str]:
    """Whatever needs an extra that is not there says which; returns the extras asked for."""
    import metastable as ms

    model, start = ms.Attention(dim=2, beta=4.0), ms.sphere.uniform(5, dim=2, seed=0)
    Path("sweep.toml").write_text(
        'tokens = 4\nmembers = 2\n[model]\ndim = 2\n[grid]\nbeta = [1.0, 2.0]\n[run]\ntimes = [0.0, 1.0]\n[observe.clusters]\n'
    )  # fmt: skip
    Path("model.gguf").write_bytes(b"GGUF")
    Path("model").mkdir()
    Path("model/config.json").write_text("{}")
    asked = {
        "torch": lambda: said(lambda: ms.simulate(model, start, until=1.0, engine="torch")),
        "cuda": lambda: said(lambda: ms.simulate(model, start, until=1.0, engine="cuda")),
        "weights": lambda: said(lambda: ms.checkpoints.load_weights("model.gguf")),
        "transformers": lambda: said(lambda: ms.checkpoints.flow("model")),
        "explore": lambda: command("explore", "--no-browser", code=2),
        "sweep": lambda: command("sweep", "sweep.toml", "--out", "results", "--workers", "2", code=2),
    }
    found = []
    for extra, ask in asked.items():
        if any(importlib.util.find_spec(module) is None for module in EXTRAS[extra]):
            message = " ".join(ask().split())
            assert f"metastable[{extra}]" in message, f"{extra} is missing, and this does not say so: {message}"
            found.append(extra)
    return found


def main() -> None:
    import metastable

    with tempfile.TemporaryDirectory() as folder:
        import os

        os.chdir(folder)
        os.environ.setdefault("MPLBACKEND", "agg")
        readme_example()
        commands()
        found = missing_extras()
        os.chdir(Path(folder).parent)
    print(
        f"{metastable.__file__}: the first example and the commands work; missing extras that were named: {', '.join(found)}"
    )


if __name__ == "__main__":
    main()

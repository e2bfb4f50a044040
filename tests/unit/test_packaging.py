"""The wheel and the source archive hold what they must."""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import metastable

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def archives(tmp_path_factory) -> tuple[Path, Path]:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


def test_wheel_installs_and_simulates(archives, tmp_path):
    """Unpacked into an empty folder, and away from the source tree, the wheel runs."""
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            str(tmp_path / "site"),
            str(archives[0]),
        ],
        check=True,
    )
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n"
        "import metastable; assert 'site' in metastable.__file__, metastable.__file__\n"
        "sys.argv = 'metastable simulate -n 6 -b 4 --until 2 --engine reference --out run.zarr'.split()\n"
        "from metastable.cli import main; main()"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path)
    assert (tmp_path / "run.zarr").is_dir()


def test_wheel_carries_the_page_of_the_explorer(archives):
    names = zipfile.ZipFile(archives[0]).namelist()
    assert any(name.startswith("metastable/explorer/") and name.endswith(".html") for name in names)
    assert not any("tests/" in name for name in names)


def test_archives_are_small(archives):
    for archive in archives:
        assert archive.stat().st_size < 2_000_000, archive


def test_the_citation_is_of_this_version():
    text = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {metastable.__version__}\n" in text
    newest = next(line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## "))
    released = re.search(r"^date-released: (.*)$", text, re.MULTILINE)
    assert released is not None
    assert newest == f"## {metastable.__version__} ({released.group(1)})"


def test_source_archive_has_what_testing_needs(archives):
    with tarfile.open(archives[1]) as archive:
        names = {"/".join(name.split("/")[1:]) for name in archive.getnames()}
    for needed in (
        "pyproject.toml",
        "Makefile",
        "README.md",
        "LICENSE",
        "tests/variants.py",
        "src/metastable/run/simulation.py",
    ):
        assert needed in names

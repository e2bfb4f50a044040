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


def test_wheel_holds_the_package_and_nothing_else(archives):
    """No tests, no docs, no data but what the package reads at run time; and what type checkers look for."""
    names = zipfile.ZipFile(archives[0]).namelist()
    assert {name.split("/")[0] for name in names} == {"metastable", f"metastable-{metastable.__version__}.dist-info"}
    kinds = {".py", ".pyi", ".typed", ".js", ".css", ".html", ".svg", ".txt", ""}
    inside = [name for name in names if name.startswith("metastable/")]
    assert [name for name in inside if Path(name).suffix not in kinds] == []
    assert "metastable/py.typed" in names
    assert not any(Path(name).name.startswith(("test_", "conftest")) for name in names)


def test_source_archive_holds_no_pictures_and_no_data_of_weight(archives):
    with tarfile.open(archives[1]) as archive:
        members = archive.getmembers()
    assert [
        item.name for item in members if Path(item.name).suffix in {".png", ".mp4", ".gguf", ".npz", ".nbi", ".nbc"}
    ] == []
    data = [item for item in members if "/tests/" in item.name and Path(item.name).suffix not in {".py", ".sh"}]
    assert sum(item.size for item in data) < 100_000, [item.name for item in data]


def test_archives_are_small(archives):
    for archive in archives:
        assert archive.stat().st_size < 2_500_000, archive


def test_the_citation_is_of_this_version():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {metastable.__version__}\n" in text
    newest = next(
        line for line in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines() if line.startswith("## ")
    )
    released = re.search(r"^date-released: (.*)$", text, re.MULTILINE)
    assert released is not None
    assert newest == f"## {metastable.__version__} ({released.group(1)})"


def test_the_paper_has_the_form_of_its_journal():
    """Sections and length as the Journal of Open Source Software asks; every reference is cited, exists and can be found."""
    text = (ROOT / "paper.md").read_text(encoding="utf-8")
    _, header, body = text.split("---\n", 2)
    assert {line.split(":")[0] for line in header.splitlines() if line[:1].isalpha()} >= {
        "title", "tags", "authors", "affiliations", "date", "bibliography"}  # fmt: skip
    sections = re.findall(r"^# (.*)$", body, re.MULTILINE)
    assert sections == ["Summary", "Statement of need", "State of the field", "Software design", "Research impact statement",
                        "References"]  # fmt: skip
    assert 750 <= len(body.split()) <= 1750
    entries = dict(
        re.findall(r"^@\w+\{(\w+),(.*?)^\}", (ROOT / "paper.bib").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    )
    assert set(re.findall(r"@(\w+)", body)) == set(entries)
    for name, entry in entries.items():
        fields = set(re.findall(r"^  (\w+) = \{", entry, re.MULTILINE))
        assert {"title", "author", "year"} <= fields, name
        assert fields & {"doi", "url", "journal"}, name


def test_source_archive_has_what_testing_needs(archives):
    with tarfile.open(archives[1]) as archive:
        names = {"/".join(name.split("/")[1:]) for name in archive.getnames()}
    for needed in (
        "pyproject.toml",
        "Makefile",
        "README.md",
        "LICENSE",
        "tests/variants.py",
        "tests/package/check_installed.py",
        "docs/gallery/first_clusters.py",
        "src/metastable/run/simulation.py",
    ):
        assert needed in names

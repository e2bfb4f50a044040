"""Every script of the gallery runs as it stands and makes its one picture, and every one of them is on the front page."""

import io
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "_extensions"))

import gallery  # noqa: E402

SCRIPTS = gallery.scripts(ROOT / "docs" / "gallery")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_makes_its_picture(name, request):
    from PIL import Image

    script = SCRIPTS[name]
    if "smollm2" in script.code:
        request.getfixturevalue("smollm2_cache")
    assert script.question.endswith("?")
    assert 100 < len(script.paragraph) < 900
    assert "\n\n" not in script.paragraph
    outcome = gallery.execute(script)
    picture = Image.open(io.BytesIO(outcome.picture))
    assert picture.width >= 800
    low, high = picture.convert("L").getextrema()
    assert low < 100 < 240 < high  # something is drawn, on white paper


def test_all_are_on_the_front_page():
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    shown = [name for part in re.findall(r"```\{gallery\}\n(.*?)```", text, re.DOTALL) for name in part.split()]
    assert len(shown) == len(set(shown)) >= 15
    assert set(shown) == set(SCRIPTS)
    assert re.findall(r"^gallery/(\w+)$", text, re.MULTILINE) == shown


def test_a_script_without_a_question_is_refused(tmp_path):
    path = tmp_path / "mute.py"
    path.write_text('"""Only a line."""\n')
    with pytest.raises(ValueError, match="a question"):
        gallery.read(path)


def test_a_script_without_its_picture_is_refused(tmp_path):
    path = tmp_path / "blind.py"
    path.write_text('"""Is there a picture?\n\nNo.\n"""\n\nprint("nothing to see")\n')
    with pytest.raises(ValueError, match=r"blind\.png"):
        gallery.execute(gallery.read(path))

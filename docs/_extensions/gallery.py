"""The gallery: short scripts, each one question, one picture, one paragraph, executed when the site is built.

A script of `docs/gallery` begins with a docstring whose first line is the question and whose rest is the paragraph, and writes one
picture, `<name of the script>.png`, into the folder in which it runs. `build` runs those that changed (or all, when the package
changed) and makes a page for each; the directive `gallery` puts their thumbnails on a page:

    ```{gallery}
    first_clusters
    renyi_centers
    ```

`python docs/_extensions/gallery.py` runs all scripts without building a site.
"""

from __future__ import annotations

import ast
import hashlib
import html
import io
import os
import runpy
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

THUMBNAIL = (640, 440)
"""Largest size of a thumbnail, in pixels; it is shown at half of that."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Script:
    """One script: where it is, its question, its paragraph and its code."""

    path: Path
    question: str
    paragraph: str
    code: str

    @property
    def name(self) -> str:
        return self.path.stem


@dataclass(frozen=True)
class Outcome:
    """What a script printed, the bytes of its picture, and how many seconds it took."""

    printed: str
    picture: bytes
    seconds: float


def read(path: Path) -> Script:
    """The script at `path`, taken apart."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    first = tree.body[0] if tree.body else None
    text = ast.get_docstring(tree)
    if text is None or "\n\n" not in text or first is None or first.end_lineno is None:
        raise ValueError(f"{path.name} must begin with a docstring: a question, an empty line, a paragraph")
    question, paragraph = text.split("\n\n", 1)
    code = "\n".join(source.splitlines()[first.end_lineno :]).strip() + "\n"
    return Script(path, question.strip(), paragraph.strip(), code)


def scripts(folder: Path) -> dict[str, Script]:
    """Every script of `folder`, by name."""
    return {path.stem: read(path) for path in sorted(folder.glob("*.py"))}


@contextmanager
def _inside(folder: str) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def execute(script: Script) -> Outcome:
    """Run a script in an empty folder, as `python script.py` would; it must write its one picture there."""
    import matplotlib as mpl

    begin = time.perf_counter()
    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, _inside(folder), redirect_stdout(printed):
        with mpl.rc_context({"backend": "agg"}):
            runpy.run_path(str(script.path), run_name="__main__")
        found = sorted(path.name for path in Path(folder).glob("*.png"))
        if found != [f"{script.name}.png"]:
            raise ValueError(f"{script.path.name} must write one picture, {script.name}.png, but wrote {found}")
        picture = (Path(folder) / found[0]).read_bytes()
    return Outcome(printed.getvalue().strip(), picture, time.perf_counter() - begin)


def _package_key() -> str:
    """A hash of the package's own source: pictures are made anew when it changes."""
    import metastable

    digest = hashlib.sha256()
    for path in sorted(Path(metastable.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _page(script: Script, printed: str) -> str:
    """The Markdown page of a script."""
    alt = script.question.replace("\n", " ")
    parts = [
        f"# {script.question}",
        script.paragraph,
        f"```{{image}} pictures/{script.name}.png\n:alt: {alt}\n:width: 100%\n```",
        f"```python\n{script.code}```",
    ]
    if printed:
        parts += [f"It prints\n\n```text\n{printed}\n```"]
    parts += [f"{{download}}`{script.name}.py <{script.name}.py>`"]
    return "\n\n".join(parts) + "\n"


def _write(path: Path, content: str | bytes) -> None:
    """Write `path` if its content is another one, so that Sphinx reads again what changed only."""
    data = content.encode() if isinstance(content, str) else content
    if not path.exists() or path.read_bytes() != data:
        path.write_bytes(data)


def _thumbnail(picture: bytes) -> bytes:
    from PIL import Image

    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image.thumbnail(THUMBNAIL)
    out = io.BytesIO()
    image.save(out, "PNG", optimize=True)
    return out.getvalue()


def _blank() -> bytes:
    """A stand-in for a picture that was not made."""
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (60, 40), "#d5dae1").save(out, "PNG")
    return out.getvalue()


def build(app: Any) -> None:
    """Event `builder-inited`: run the scripts and write their pages, pictures and thumbnails."""
    folder = Path(app.srcdir) / "gallery"
    pictures = folder / "pictures"
    pictures.mkdir(exist_ok=True)
    package = _package_key()
    for script in scripts(folder).values():
        key = hashlib.sha256((package + script.path.read_text(encoding="utf-8")).encode()).hexdigest()
        picture, record = pictures / f"{script.name}.png", pictures / f"{script.name}.txt"
        if not app.config.gallery_execute:
            outcome = Outcome("", _blank(), 0.0)
        elif picture.exists() and record.exists() and record.read_text(encoding="utf-8").split("\n", 1)[0] == key:
            outcome = Outcome(record.read_text(encoding="utf-8").split("\n", 1)[1], picture.read_bytes(), 0.0)
        else:
            outcome = execute(script)
            logger.info("gallery: %s (%.1f s)", script.name, outcome.seconds)
        _write(picture, outcome.picture)
        _write(pictures / f"{script.name}-small.png", _thumbnail(outcome.picture))
        if app.config.gallery_execute:
            _write(record, f"{key}\n{outcome.printed}")
        _write(folder / f"{script.name}.md", _page(script, outcome.printed))


class Gallery(SphinxDirective):
    """Thumbnails of the named scripts, each with its question, leading to its page."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        folder = Path(self.env.srcdir) / "gallery"
        up = "../" * self.env.docname.count("/")
        cards = []
        for name in filter(None, (line.strip() for line in self.content)):
            path = folder / f"{name}.py"
            if not path.exists():
                logger.warning("there is no script %s in the gallery", name, location=self.get_location())
                continue
            self.env.note_dependency(str(path))
            question = html.escape(read(path).question)
            small = f"{up}_static/gallery/{name}.png"
            cards.append(
                f'<a class="card" href="{up}gallery/{name}.html"><span><img src="{small}" alt="" loading="lazy"></span>{question}</a>'
            )
        return [nodes.raw("", f'<div class="gallery">{"".join(cards)}</div>', format="html")]


def copy_thumbnails(app: Any, exception: Exception | None) -> None:
    """Event `build-finished`: the thumbnails lie beside the site's own files."""
    if exception is None and app.builder.format == "html":
        target = Path(app.outdir) / "_static" / "gallery"
        target.mkdir(parents=True, exist_ok=True)
        for path in (Path(app.srcdir) / "gallery" / "pictures").glob("*-small.png"):
            (target / path.name.replace("-small", "")).write_bytes(path.read_bytes())


def setup(app: Any) -> dict:
    """Register the extension."""
    app.add_config_value("gallery_execute", True, "env")
    app.add_directive("gallery", Gallery)
    app.connect("builder-inited", build)
    app.connect("build-finished", copy_thumbnails)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    for item in scripts(Path(__file__).parents[1] / "gallery").values():
        print(f"{item.name}: {execute(item).seconds:.1f} s", flush=True)

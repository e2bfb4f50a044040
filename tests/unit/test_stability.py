"""The public surface since the last release: whatever went or came is in the changelog, by name.

`data/names-0.1.0.txt` lists the names of release 0.1.0 with their parameters. After a release, `python tests/unit/test_stability.py`
prints the list of the code at hand, to be stored under the new version.
"""

import inspect
import re
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[2]
RELEASE = "0.1.0"
ROOMS = ("", "analysis", "observe", "checkpoints", "control", "derivatives", "errors", "figures", "meanfield", "reproduce",
         "sphere", "starts", "sweep", "theory")  # fmt: skip


def names() -> list[str]:
    """Lines `room.name` and `room.name(parameter)` of everything that users may call."""
    lines = set()
    for room in ROOMS:
        module = import_module("metastable.analysis.observe" if room == "observe" else f"metastable.{room}".rstrip("."))
        for name in getattr(module, "__all__", None) or vars(module):
            value = getattr(module, name)
            own = getattr(value, "__module__", "").startswith("metastable")
            if (
                name.startswith("_")
                or inspect.ismodule(value)
                or not (inspect.isclass(value) or callable(value))
                or not own
            ):
                continue
            place = f"{room}.{name}".lstrip(".")
            lines.add(place)
            if inspect.isclass(value) and issubclass(value, Exception):
                continue
            for parameter in inspect.signature(value).parameters.values():
                if not parameter.name.startswith("_"):
                    lines.add(f"{place}({parameter.name})")
    return sorted(lines)


def released() -> set[str]:
    return set((Path(__file__).parent / "data" / f"names-{RELEASE}.txt").read_text(encoding="utf-8").split())


def news() -> str:
    """The changelog down to the last release."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return text.split(f"\n## {RELEASE}")[0]


def unmentioned(lines: set[str], text: str) -> list[str]:
    """Those whose last word (a name, or a parameter) does not stand as a word of the text."""
    return sorted(line for line in lines if not re.search(rf"\b{re.split(r'[.(]', line.rstrip(')'))[-1]}\b", text))


def test_every_public_room_is_compared():
    """Rooms that `import metastable` offers by name; `ms.observe` is one that lives inside another."""
    text = (ROOT / "src" / "metastable" / "__init__.pyi").read_text(encoding="utf-8")
    rooms = set(re.findall(r"^from \. import (\w+) as", text, re.MULTILINE))
    assert len(rooms) >= 12
    assert rooms <= set(ROOMS)


def test_nothing_went_without_a_word():
    gone = released() - set(names())
    assert unmentioned(gone, news()) == []


def test_nothing_came_without_a_word():
    new = {line for line in set(names()) - released() if "(" not in line}
    assert unmentioned(new, news()) == []


def test_a_name_that_goes_is_noticed():
    assert unmentioned({"simulate(until_the_end)", "simulate", "theory.radius"}, "`simulate` takes `until`") == [
        "simulate(until_the_end)",
        "theory.radius",
    ]


if __name__ == "__main__":
    print("\n".join(names()))

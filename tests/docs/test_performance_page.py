"""The tables of the page on speed are those of the record; nobody copies a number by hand."""

import json

import pytest

from benchmarks import page


def record() -> dict:
    return json.loads(page.RECORD.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", page.PAGES, ids=lambda path: path.name)
def test_the_page_shows_the_record(path):
    text = path.read_text(encoding="utf-8")
    assert page.fill(text, record()) == text, "run: python -m benchmarks.page"


def test_every_table_has_its_place():
    text = "".join(path.read_text(encoding="utf-8") for path in page.PAGES)
    assert {part for _, part, _ in page.TABLE.findall(text)} == set(page.PARTS)


def test_another_record_is_another_page():
    results = record()
    results["fig3"]["rows"][0]["milliseconds"] = 12345.0
    results["whole"] = {
        "figure3": {
            "members": 7,
            "one": {"seconds": 3.0},
            "two": {"seconds": 2.0, "peak_megabytes": 99.0},
            "speed_up": 1.5,
        },
        "million": {"tokens": 5, "seconds": 1.0, "evaluations": 17, "peak_megabytes": 42.0},
        "first_result": {"circle": {"cold_seconds": 8.0, "cold_cpu_seconds": 7.0, "warm_seconds": 1.0}},
    }
    results |= {"versions": {"numpy": "9.9"}, "date": "2030-01-01", "left_out": ["KeOps (no compiler)"]}
    text = page.fill(page.PAGE.read_text(encoding="utf-8"), results)
    for said in (
        "12345",
        "7 experiments",
        "17 right-hand sides",
        "7.0 CPU seconds",
        "numpy 9.9",
        "not measured: KeOps",
    ):
        assert said in text


def test_another_record_of_workers_is_another_page():
    results = record()
    results["workers"]["sweep_speed_up"] = 9.87
    results["workers"]["overhead"]["client_megabytes"] = 4321.0
    text = page.fill(page.SCALE.read_text(encoding="utf-8"), results)
    assert "9.87 times faster" in text
    assert "4321 MB" in text


def test_numbers_are_rounded_not_spelled_with_exponents():
    assert [page.digits(value) for value in (8788.7, 0.0474, 3257.7, 17.45)] == ["8800", "0.047", "3300", "17"]

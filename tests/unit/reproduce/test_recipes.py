"""Every recipe on a small scale: it measures, judges from stored data alone, and draws."""

import pytest

from metastable.reproduce import Settings, all_papers, catalogue
from metastable.reproduce import result_store as storage

EVERY = [(paper.number, recipe) for paper in all_papers() for recipe in paper.recipes]


@pytest.mark.parametrize("recipe", [item for _, item in EVERY], ids=[f"{number}-{item.name}" for number, item in EVERY])
def test_recipe(recipe, tmp_path):
    small = recipe.small()
    settings = Settings(members=2)
    seen = []
    dataset = small.measure(small.parameters, settings, seen.append)
    assert seen == sorted(seen)
    result = storage.store(small, settings, dataset, 0.0, tmp_path, ("png",))
    assert result.findings
    assert result.figure is not None
    assert result.figure.stat().st_size > 5_000
    again = storage.read_data(tmp_path / small.name)
    assert small.judge(again) == list(result.findings)
    for finding in result.findings:
        assert "nan" not in finding.measured.lower().split()


def test_exact_statements_agree():
    """Items without randomness in their verdict hold at any size."""
    exact = {"figure-4", "lemma-3.1", "lemma-5.3", "lemma-a.1", "lemma-5.1"}
    for recipe in catalogue():
        if recipe.name in exact:
            dataset = recipe.measure(recipe.parameters, Settings(members=3, seed=1), lambda fraction: None)
            assert {finding.verdict for finding in recipe.judge(dataset)} == {"agrees"}, recipe.name


def test_an_interrupted_ensemble_is_no_result(monkeypatch):
    """Figure 3 with fewer members than it claims must not be stored: Ctrl-C in the ensemble stops the recipe."""
    from metastable.reproduce.papers.p2411_04990 import parking

    complete = parking.ensemble
    monkeypatch.setattr(parking, "ensemble", lambda *a, **k: complete(*a, **k).assign_attrs(status="interrupted"))
    recipe = next(item for item in catalogue() if item.name == "figure-3")
    with pytest.raises(KeyboardInterrupt):
        recipe.measure(recipe.parameters, Settings(members=2), lambda share: None)

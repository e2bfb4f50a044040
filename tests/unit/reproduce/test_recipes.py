"""Every recipe on a small scale: it measures, judges from stored data alone, and draws."""

from dataclasses import replace

import pytest

from metastable.reproduce import Settings, catalogue
from metastable.reproduce import result_store as storage

SMALL = {
    "figure-5": {"dim": 96, "heads": 4, "layers": 1, "deviation": 0.02},
    "figure-6": {"sources": {}, "null_layers": 1},
    "counts-scaling": {"betas": (64.0, 128.0), "dims": (2,), "c": 4.0, "tokens_per_cap": 20},
    "lemma-c.1": {"deltas": (0.5, 1.0), "renyi_tokens": 500},
    "cluster-law": {"tokens": 40, "beta": 16.0, "decades": (1, 2, 4, 8, 13)},
    "cascade": {"tokens": 40, "beta": 16.0, "until": 1e14},
    "cascade-law": {"tokens": 30, "cases": ((2, 16.0),), "law_beta": 16.0, "law_tokens": 30, "decades": (2.5, 4, 8)},
    "theorem-5.2": {"tokens": 20},
    "causal-vs-full": {"tokens": 30, "until": 100.0},
    "table-1-random": {"tokens": 12},
    "cloud-width": {"tokens": 80, "dims": (3,)},
}
"""Parameters that make the slower items small."""


@pytest.mark.parametrize("recipe", catalogue(), ids=lambda recipe: recipe.name)
def test_recipe(recipe, tmp_path):
    small = replace(recipe, parameters={**recipe.parameters, **SMALL.get(recipe.name, {})})
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
    from metastable.reproduce.recipes import parking

    complete = parking.ensemble
    monkeypatch.setattr(parking, "ensemble", lambda *a, **k: complete(*a, **k).assign_attrs(status="interrupted"))
    recipe = next(item for item in catalogue() if item.name == "figure-3")
    with pytest.raises(KeyboardInterrupt):
        recipe.measure(recipe.parameters, Settings(members=2), lambda share: None)

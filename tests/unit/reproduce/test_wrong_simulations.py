"""A verdict is worth something only if a wrong simulation loses it: beta 10 % too large, or the causal mask for the full one."""

from types import ModuleType

import pytest

from metastable.model import Attention, Causal, Full
from metastable.reproduce import Recipe, Settings
from metastable.reproduce.papers.p2312_10794 import equiangular
from metastable.reproduce.papers.p2410_06833 import merging_order
from metastable.reproduce.papers.p2410_23228 import linear_growth
from metastable.reproduce.papers.p2510_22026 import speeds
from metastable.reproduce.papers.p2512_01868 import long_context


def hotter(model: Attention) -> Attention:
    return model.replace(beta=1.1 * model.beta)


def masked(model: Attention) -> Attention:
    assert isinstance(model.mask, Full)
    return model.replace(mask=Causal())


CASES = [
    (equiangular, equiangular.EQUIANGULAR, hotter, 0),
    (equiangular, equiangular.EQUIANGULAR, masked, 0),
    (merging_order, merging_order.PLATEAUS, hotter, 1),
    (linear_growth, linear_growth.GROWTH_RATES, hotter, 0),
    (linear_growth, linear_growth.DENSITY_AND_TOKENS, hotter, 0),
    (speeds, speeds.START_SPEED, hotter, 0),
    (speeds, speeds.END_SPEED, masked, 0),
    (long_context, long_context.LONG_CONTEXT, hotter, 0),
]


@pytest.mark.parametrize(
    ("module", "recipe", "wrong", "line"),
    CASES,
    ids=[f"{recipe.name}-{wrong.__name__}" for _, recipe, wrong, _ in CASES],
)
def test_a_wrong_simulation_loses_its_verdict(module: ModuleType, recipe: Recipe, wrong, line: int, monkeypatch):
    """The line of the item that speaks of what was broken agrees with the right simulation, and not with the wrong one."""
    right, small = module.simulate, recipe.small()

    def judged():
        return recipe.judge(small.measure(small.parameters, Settings(members=4), lambda share: None))[line].verdict

    assert judged() == "agrees"
    merging_order.plateaus.cache_clear()
    monkeypatch.setattr(module, "simulate", lambda model, *places, **options: right(wrong(model), *places, **options))
    assert judged() != "agrees"
    merging_order.plateaus.cache_clear()

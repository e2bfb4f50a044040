"""The tests behind the verdicts behave as statistics should."""

import numpy as np
import pytest
from scipy import stats

from metastable.reproduce.draws import each, gaussian_pair, part, rotation, seeds
from metastable.reproduce.recipe import Settings
from metastable.reproduce.statistics import Mean, consistent, interval, percent, score, slope


def test_mean_and_error_match_scipy():
    sample = np.random.default_rng(0).normal(3.0, 2.0, 50)
    mean = Mean.of(sample)
    assert mean.value == pytest.approx(sample.mean())
    assert mean.error == pytest.approx(stats.sem(sample))
    assert str(Mean(6.27412, 0.0071, 100)) == "6.2741 ± 0.0071"


def test_false_alarms_are_rare_and_real_differences_are_seen():
    generator = np.random.default_rng(1)
    means = [Mean.of(generator.normal(0, 1, 30)) for _ in range(400)]
    assert sum(not consistent(mean, 0.0) for mean in means) <= 3
    assert not any(consistent(mean, 2.0) for mean in means)


def test_exact_means():
    exact = Mean(1.0, 0.0, 5)
    assert consistent(exact, 1.0)
    assert not consistent(exact, 1.1)
    assert score(exact, 0.0) == np.inf


def test_interval_is_exact():
    low, high = interval(20, 20)
    assert high == 1.0
    assert low == pytest.approx(0.025 ** (1 / 20))
    assert percent(18, 20) == "18 of 20 (95 % interval 68 to 99 %)"


def test_slope_recovers_a_line_and_its_error():
    generator = np.random.default_rng(2)
    x = np.linspace(0, 1, 20)
    fits = [slope(x, 3 * x + generator.normal(0, 0.1, 20), np.full(20, 0.1)) for _ in range(300)]
    values, errors = np.array([f.value for f in fits]), np.array([f.error for f in fits])
    assert values.mean() == pytest.approx(3.0, abs=0.03)
    assert values.std() == pytest.approx(errors.mean(), rel=0.25)
    assert slope(x, 2 * x).value == pytest.approx(2.0)


def test_seeds_do_not_depend_on_their_number():
    settings = Settings(seed=5)
    assert seeds(settings, "a", 3) == seeds(settings, "a", 10)[:3]
    assert seeds(settings, "a", 3) != seeds(settings, "b", 3)
    assert seeds(settings, "a", 3) != seeds(Settings(seed=6), "a", 3)
    assert len(set(seeds(settings, "a", 1000))) == 1000


def test_each_keeps_the_order_and_reports():
    seen = []
    assert each(lambda k: k * k, list(range(20)), seen.append) == [k * k for k in range(20)]
    assert sorted(seen) == seen
    assert seen[-1] == 1.0


def test_each_passes_errors_on():
    def fail(k):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        each(fail, [1, 2], lambda fraction: None)


def test_part_maps_fractions():
    seen = []
    part(seen.append, 0.25, 0.75)(0.5)
    assert seen == [0.5]


def test_random_matrices():
    turn = rotation(4, 0)
    np.testing.assert_allclose(turn @ turn.T, np.eye(4), atol=1e-12)
    query, key = gaussian_pair(3, 1)
    assert not np.allclose(query, key)


def test_settings_cap_the_draws():
    assert Settings(members=10).draws(200) == 10
    assert Settings().draws(200) == 200

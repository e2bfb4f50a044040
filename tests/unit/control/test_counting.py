"""Members that stop early have no count, and too many of them no mean."""

import numpy as np
import pytest

import metastable as ms
from metastable.control import tune
from metastable.control.counting import Counter, gathered
from metastable.errors import ConvergenceError


@pytest.mark.filterwarnings("ignore::metastable.errors.StoppedEarlyWarning")
def test_members_that_stop_before_their_leaders_are_known_have_no_count():
    model = ms.Attention(dim=2, beta=12.0)
    short = Counter(1e4, 0, None, {"max_steps": 90}).counts(model, 12, 16, 0)
    whole = Counter(1e4, 0, None, {}).counts(model, 12, 16, 0)
    lost = np.isnan(short)
    assert 0 < lost.sum() < 16
    assert not np.isnan(whole).any()
    np.testing.assert_array_equal(short[~lost], whole[~lost])


@pytest.mark.filterwarnings("ignore::metastable.errors.StoppedEarlyWarning")
@pytest.mark.parametrize(("until", "steps"), [(1e4, 60), (50.0, 45)])
def test_a_knob_is_not_set_by_those_that_happened_to_arrive(until, steps):
    model = ms.Attention(dim=2, beta=8.0)
    with pytest.raises(ConvergenceError, match="did not reach the horizon"):
        tune(model, "beta", tokens=12, clusters=3, until=until, accuracy=0.2, max_steps=steps)


def test_leaders_take_over_when_tokens_have_gathered():
    """V = 0.02 I is V = I, fifty times as slow: members are followed to t = 5000, not to 100, where they have hardly moved."""
    plain, slow = (ms.Attention(dim=2, beta=24.0, value=factor * np.eye(2)) for factor in (1.0, 0.02))
    assert gathered(slow) == pytest.approx(5000.0)
    counter = Counter(50 * 1e4, 3, None, {})
    assert counter.said(slow, 40) == "simulated to t = 5000, then the flow of the leaders"
    np.testing.assert_array_equal(counter.counts(slow, 40, 24, 0), Counter(1e4, 3, None, {}).counts(plain, 40, 24, 0))
    assert not Counter(9e3, 3, None, {}).reduced(slow, 40)

"""What pages say about the end of runs of several models, and of clusters that stand."""

import numpy as np
import pytest

import metastable as ms
from metastable.explorer import outcome
from tests.unit.explorer.test_export import told

LATE = ms.Schedule(
    [(0.0, ms.Attention(dim=2, beta=4.0, value=np.diag([1.0, -0.5]))), (5.0, ms.Attention(dim=2, beta=4.0))]
)
"""Token 1 moves until the second model takes over."""


@pytest.fixture(scope="module")
def late():
    return ms.simulate(LATE, ms.sphere.uniform(30, dim=2, seed=3), until=1e4)


def said(run, path, **lengths):
    found = told(run, path, **lengths)
    return found["facts"]["prediction"]["text"], found["end"]["reached"]


def test_the_first_token_is_meant_where_the_last_model_took_over(late, tmp_path):
    """It was "one point, x_1(0)", from which all tokens are 0.9 rad away."""
    assert np.arccos(np.clip(late.final @ late.start[0], -1, 1)).max() > 0.5
    predicted, reached = said(late, tmp_path)
    assert predicted.startswith("one point, x₁(5)")
    assert reached["text"].startswith("one point, x₁(5) by t = ")
    assert reached["agrees"] is True
    assert ms.classify(late).since == 5.0
    assert "x_1(5)" in repr(ms.classify(late))
    assert "x_1(0)" not in ms.classify(late)._repr_html_()


def test_runs_that_did_not_keep_that_moment_have_a_page(tmp_path):
    run = ms.simulate(LATE, ms.sphere.uniform(30, dim=2, seed=3), times=[1.0, 10.0, 1e4])
    predicted, reached = said(run, tmp_path)
    assert predicted.startswith("one point, x₁(5)")
    assert reached == {"text": "one cluster at t = 10000", "agrees": None}


def test_clusters_that_will_merge_are_not_at_rest(tmp_path):
    full = ms.Attention(dim=2, beta=9.0, mask=ms.Full())
    run = ms.simulate(full, ms.sphere.uniform(40, dim=2, seed=0), until=3000.0)
    text = said(run, tmp_path)[1]["text"]
    assert text.startswith("2 clusters at t = 3000")
    assert "rest" not in text


def test_standing_is_said_of_the_last_model_only(tmp_path):
    """Clusters were said to rest from a moment on at which an earlier model still moved them."""
    models = [ms.Attention(dim=2, beta=beta, mask=ms.Full()) for beta in (9.0, 2.0, 40.0)]
    run = ms.simulate(ms.Schedule([*zip((0.0, 4.0, 10.0), models)]), ms.sphere.uniform(30, dim=2, seed=3), until=30.0)
    text = said(run, tmp_path, delta=1.0, radius=0.1)[1]["text"]
    moment = float(text.rsplit("t = ", 1)[1])
    assert moment >= 10.0


def test_times_in_words():
    assert outcome.pretty("one point, x_1(0)", 0.0) == "one point, x₁(0)"
    assert outcome.pretty("one point, x_1(0)", 3.2e7) == "one point, x₁(3.2·10⁷)"

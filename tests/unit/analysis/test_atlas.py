"""Table 1: `predict` on hand-made value matrices, `classify` on synthetic final states of every row."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.linalg import block_diag

import metastable as ms
from metastable import sphere
from metastable.analysis import classify, features, group, leading_eigenvalue, match, predict, predict_value
from metastable.errors import InvalidInputError, UnsupportedError

TOLERANCE = 1e-9


def jordan(value: float, size: int) -> np.ndarray:
    return value * np.eye(size) + np.diag(np.ones(size - 1), 1)


def pair(real: float, imaginary: float) -> np.ndarray:
    return np.array([[real, -imaginary], [imaginary, real]])


def complex_jordan(real: float, imaginary: float) -> np.ndarray:
    block = pair(real, imaginary)
    return np.block([[block, np.eye(2)], [np.zeros((2, 2)), block]])


# name: (V, row, eigenvalue, algebraic, geometric, longest block, dim L, basis)
TABLE = {
    "identity": (np.eye(3), 1, 1.0, 3, 3, 1, 3, "theorem"),
    "multiple of I": (2.5 * np.eye(4), 1, 2.5, 4, 4, 1, 4, "theorem"),
    "small multiple of I": (1e-6 * np.eye(3), 1, 1e-6, 3, 3, 1, 3, "theorem"),
    "repeated": (np.diag([1.0, 1.0, 0.5, -1.0]), 2, 1.0, 2, 2, 1, 2, "conjecture"),
    "three times": (np.diag([2.0, 2.0, 2.0, -5.0]), 2, 2.0, 3, 3, 1, 3, "conjecture"),
    "simple": (np.diag([2.0, 1.0, 0.0]), 3, 2.0, 1, 1, 1, 1, "conjecture"),
    "simple, huge negative part": (np.diag([0.1, -50.0, -100.0]), 3, 0.1, 1, 1, 1, 1, "conjecture"),
    "simple before a pair": (block_diag([[1.0]], pair(0.5, 3.0)), 3, 1.0, 1, 1, 1, 1, "conjecture"),
    "triangular": (np.array([[1.0, 5.0], [0.0, 0.5]]), 3, 1.0, 1, 1, 1, 1, "conjecture"),
    "minus identity": (-np.eye(3), 4, -1.0, 3, 3, 1, 3, "conjecture"),
    "negative repeated": (np.diag([-1.0, -1.0, -2.0]), 4, -1.0, 2, 2, 1, 2, "conjecture"),
    "negative simple": (np.diag([-1.0, -2.0, -3.0]), 5, -1.0, 1, 1, 1, 1, "conjecture"),
    "pair, growing": (block_diag(pair(1.0, 2.0), [[0.5]]), None, 1 + 2j, 1, 1, 1, 2, "none"),
    "pair, shrinking": (block_diag(pair(-1.0, 2.0), [[-2.0]]), None, -1 + 2j, 1, 1, 1, 2, "none"),
    "pair, repeated": (block_diag(pair(1.0, 2.0), pair(1.0, 2.0)), None, 1 + 2j, 2, 2, 1, 4, "none"),
    "pair, Jordan": (complex_jordan(1.0, 2.0), None, 1 + 2j, 2, 1, 2, 2, "none"),
    "nearly real pair": (pair(1.0, 1e-6), None, 1 + 1e-6j, 1, 1, 1, 2, "none"),
    "real and pair together": (block_diag(pair(1.0, 2.0), [[1.0]]), None, 1.0, 1, 1, 1, 3, "none"),
    "Jordan 2": (block_diag(jordan(1.0, 2), [[0.0]]), 3, 1.0, 2, 1, 2, 1, "conjecture"),
    "Jordan 3": (block_diag(jordan(1.0, 3), [[0.5]]), 3, 1.0, 3, 1, 3, 1, "conjecture"),
    "Jordan 2 + 1": (block_diag(jordan(1.0, 2), [[1.0]], [[0.0]]), 3, 1.0, 3, 2, 2, 1, "conjecture"),
    "Jordan 2 + 2": (block_diag(jordan(1.0, 2), jordan(1.0, 2)), 2, 1.0, 4, 2, 2, 2, "conjecture"),
    "Jordan 3 + 2 + 1": (
        block_diag(jordan(1.0, 3), jordan(1.0, 2), [[1.0]], [[0.2]]),
        *(3, 1.0, 6, 3, 3, 1, "conjecture"),
    ),
    "Jordan 5, negative": (jordan(-1.0, 5), 5, -1.0, 5, 1, 5, 1, "conjecture"),
    "weak Jordan": (np.array([[1.0, 1e-3], [0.0, 1.0]]), 3, 1.0, 2, 1, 2, 1, "conjecture"),
    "nearly equal, below the tolerance": (np.diag([1.0, 1.0 - 0.5e-9, 0.0]), 2, 1.0, 2, 2, 1, 2, "conjecture"),
    "nearly equal, above the tolerance": (np.diag([1.0, 1.0 - 1e-8, 0.0]), 3, 1.0, 1, 1, 1, 1, "conjecture"),
    "nearly defective, above": (np.array([[1.0, 1.0], [0.0, 1.0 - 1e-3]]), 3, 1.0, 1, 1, 1, 1, "conjecture"),
    "nearly defective, below": (np.array([[1.0, 1.0], [0.0, 1.0 - 1e-5]]), 3, 1.0 - 5e-6, 2, 1, 2, 1, "conjecture"),
    "zero": (np.zeros((3, 3)), None, 0.0, 3, 3, 1, 3, "none"),
    "nilpotent": (jordan(0.0, 3), None, 0.0, 3, 1, 3, 1, "none"),
    "leading zero": (np.diag([0.0, -1.0, -2.0]), None, 0.0, 1, 1, 1, 1, "none"),
}


@pytest.mark.parametrize("name", TABLE)
def test_predict_on_the_table_and_its_rotations(name: str) -> None:
    value, row, eigenvalue, algebraic, geometric, longest, size, basis = TABLE[name]
    generator = np.random.default_rng(len(name))
    for turn in range(6):
        rotation = np.eye(len(value)) if turn == 0 else np.linalg.qr(generator.standard_normal(value.shape))[0]
        turned = rotation @ value @ rotation.T
        got = predict(ms.Attention(dim=len(value), beta=3.0, value=turned), tolerance=TOLERANCE)
        assert (got.row, got.multiplicity, got.geometric_multiplicity, got.longest_block, got.basis) == (
            *(row, algebraic, geometric, longest, basis),
        )
        assert complex(got.eigenvalue) == pytest.approx(eigenvalue, abs=1e-8)
        assert got.is_complex == isinstance(eigenvalue, complex)
        assert got.subspace.shape == (len(value), size)
        np.testing.assert_allclose(got.subspace.T @ got.subspace, np.eye(size), atol=1e-10)
        # L is invariant under V.
        image = turned @ got.subspace
        np.testing.assert_allclose(image, got.subspace @ (got.subspace.T @ image), atol=3e-5 * np.abs(value).max())


def test_the_space_of_jordan_blocks_closes_the_longest() -> None:
    """Blocks of length 3 and 2 with the same eigenvalue: L is the eigenvector of the longer one alone."""
    value = block_diag(jordan(1.0, 2), jordan(1.0, 3), [[0.2]])
    rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 6)))[0]
    got = predict_value(rotation @ value @ rotation.T)
    assert abs(got.subspace[:, 0] @ rotation[:, 2]) == pytest.approx(1.0, abs=1e-7)
    x = ms.theory.single_token(rotation @ value @ rotation.T, sphere.uniform(1, 6, 0)[0], 1e4)
    assert abs(x @ rotation[:, 2]) == pytest.approx(1.0, abs=1e-4)


def test_predict_large_matrices_and_low_rank() -> None:
    generator = np.random.default_rng(1)
    value = generator.standard_normal((60, 8)) @ generator.standard_normal((8, 60))
    got = leading_eigenvalue(value)
    exact = np.linalg.eigvals(value)
    assert complex(got.eigenvalue).real == pytest.approx(exact.real.max(), rel=1e-10)
    kernel = leading_eigenvalue(-(value @ value.T))
    assert kernel.multiplicity == 52
    assert kernel.sign == 0


def test_predict_names_what_the_atlas_does_not_cover() -> None:
    identity = ms.Attention(dim=3, beta=2.0)
    for change, word in (
        ({"mask": ms.Full()}, "mask"),
        ({"weights": "unnormalized"}, "weights"),
        ({"norm": ms.PreLN()}, "norm"),
        ({"noise": 0.1}, "noise"),
        ({"bias": ms.ALiBi(0.5)}, "bias"),
        ({"frozen": ms.Frozen(np.eye(3)[:1])}, "frozen"),
    ):
        got = predict(identity.replace(**change))
        assert (got.row, got.basis) == (None, "none")
        assert word in got.reason
        assert got.eigenvalue == pytest.approx(1.0)


def test_predict_with_several_heads() -> None:
    value = np.diag([1.0, 0.5, 0.2])
    query = np.random.default_rng(0).standard_normal((3, 3))
    same = tuple(ms.Head(query=query, value=v, beta=2.0) for v in (value, np.eye(3) - value))
    assert predict(ms.Attention(dim=3, heads=same)).row == 1
    different = (ms.Head(value=value, beta=2.0), ms.Head(value=value, beta=3.0))
    got = predict(ms.Attention(dim=3, heads=different))
    assert (got.row, got.basis) == (None, "none")
    assert got.eigenvalue == pytest.approx(2.0)
    assert "token 1" in got.reason


def finished(value: np.ndarray, x: np.ndarray, first: np.ndarray | None = None, until: float = 1e3) -> SimpleNamespace:
    """A run that ended in the tokens x."""
    start = x.copy() if first is None else np.concatenate([first[None], x[1:]])
    model = ms.Attention(dim=x.shape[1], beta=9.0, value=value)
    return SimpleNamespace(
        model=model, times=np.array([until]), states=x[None], start=start, final=x, dense=None, status="success"
    )


def jitter(x: np.ndarray, size: float, seed: int = 0) -> np.ndarray:
    return sphere.normalize(x + size * np.random.default_rng(seed).standard_normal(x.shape))


def test_classify_points() -> None:
    first = sphere.uniform(1, 3, seed=5)[0]
    end = jitter(np.tile(first, (20, 1)), 1e-4)
    got = classify(finished(np.eye(3), end, first))
    assert (got.row, got.as_predicted) == (1, True)
    assert got.distances["largest distance to x_1(0)"] < 1e-2

    plane = np.diag([1.0, 1.0, 0.3])
    in_plane = sphere.normalize([0.6, 0.8, 0.0])
    got = classify(finished(plane, jitter(np.tile(in_plane, (20, 1)), 1e-4), first))
    assert (got.row, got.as_predicted) == (2, True)

    axis = np.diag([1.0, 0.5, 0.3])
    signs = np.where(np.arange(20) % 3 == 0, -1.0, 1.0)[:, None]
    got = classify(finished(axis, jitter(signs * np.eye(3)[0], 1e-4)))
    assert (got.row, got.as_predicted) == (3, True)
    assert sorted(got.groups.sizes.tolist()) == [7, 13]
    # One of the two points may be empty.
    assert classify(finished(axis, jitter(np.tile(np.eye(3)[0], (5, 1)), 1e-4))).row == 3


def test_classify_clouds() -> None:
    """Settled clouds are made by running the repulsive flow; here only the tokens are checked to be where they should."""
    generator = np.random.default_rng(3)
    angles = generator.uniform(0, 2 * math.pi, 30)
    ring = jitter(np.stack([np.cos(angles), np.sin(angles), np.zeros(30)], axis=1), 0.1)
    plane, axis = np.diag([-1.0, -1.0, -2.0]), np.diag([-1.0, -2.0, -2.5])
    poles = jitter(np.where(np.arange(30) % 2, 1.0, -1.0)[:, None] * np.eye(3)[0], 0.15)
    for value, state, row in ((plane, ring, 4), (axis, poles, 5)):
        prediction = predict_value(value)
        still = features(state, state[0], prediction.subspace, np.full(30, 1e-5), 1e3)
        assert match(still, group(state, 1e-2), prediction) == (row, ms.analysis.ROWS[row])
        moving = features(state, state[0], prediction.subspace, np.full(30, 0.3), 1e3)
        assert match(moving, group(state, 1e-2), prediction) == (None, "unsettled")
    uniform = sphere.uniform(30, 3, seed=1)
    away = features(uniform, uniform[0], predict_value(axis).subspace, np.zeros(30), 1e3)
    assert match(away, group(uniform, 1e-2), predict_value(axis)) == (None, "none of the atlas")


def test_classify_rotation() -> None:
    value = block_diag(pair(1.0, 2.0), [[0.1]])
    end = jitter(np.tile([0.6, 0.8, 0.0], (10, 1)), 1e-5)
    got = classify(finished(value, end))
    assert (got.row, got.configuration, got.as_predicted) == (None, "one point rotating in L", True)
    assert got.speed > 0.1


def test_classify_what_still_moves() -> None:
    x = sphere.uniform(20, 3, seed=0)
    got = classify(finished(np.eye(3), x, until=10.0))
    assert (got.row, got.configuration) == (None, "unsettled")
    assert got.speed > 1e-2
    # Two clusters far apart hardly move, but Theorem 4.1 says that they must merge.
    two = jitter(np.repeat(np.array([[1.0, 0.0, 0.0], [-0.9, 0.43588989, 0.0]]), 10, axis=0), 1e-9)
    assert classify(finished(np.eye(3), two)).configuration == "unsettled"
    # For a simple eigenvalue a stable point off the axis is possible: settled, but none of the atlas.
    prediction = predict_value(np.diag([1.0, 0.5, 0.3]))
    state = np.repeat(sphere.normalize([[1.0, 0.0, 0.0], [0.7, 0.7, 0.0]]), 5, axis=0)
    found = features(state, state[0], prediction.subspace, np.zeros(10), 100.0)
    assert match(found, group(state, 1e-2), prediction) == (None, "none of the atlas")


@pytest.mark.parametrize(
    "call",
    [
        lambda: predict(np.eye(3)),  # type: ignore[arg-type]
        lambda: predict_value(np.ones((2, 3))),
        lambda: predict_value(np.full((2, 2), np.nan)),
        lambda: leading_eigenvalue(np.eye(2), tolerance=0.5),
        lambda: classify(np.eye(3)),  # type: ignore[arg-type]
        lambda: classify(finished(np.eye(2), np.eye(2)), radius=0.0),
    ],
)
def test_bad_arguments_are_refused(call: object) -> None:
    with pytest.raises(InvalidInputError):
        call()  # type: ignore[operator]


def test_one_sided_ends_are_said() -> None:
    """All tokens at one of the two points: row 3 as predicted, but not "two points"."""
    axis = np.diag([1.0, 0.5, 0.3])
    for sign in (1.0, -1.0):
        got = classify(finished(axis, jitter(np.tile(sign * np.eye(3)[0], (300, 1)), 1e-4)))
        assert (got.row, got.configuration, got.as_predicted) == (3, "one point, xi or -xi", True)
    repelling = predict_value(np.diag([-1.0, -2.0, -2.5]))
    state = jitter(np.tile(np.eye(3)[0], (30, 1)), 0.15)
    still = features(state, state[0], repelling.subspace, np.full(30, 1e-5), 1e3)
    assert match(still, group(state, 1e-2), repelling) == (5, "one cloud, around xi or -xi")


def test_short_forms() -> None:
    got = classify(finished(np.diag([1.0, 0.5, 0.3]), sphere.uniform(300, 3, seed=0)))
    for item in (got, got.prediction, got.features, got.groups):
        assert len(repr(item)) < 400
    assert "row 3 (conjecture)" in repr(got.prediction)
    assert "predicted: two points" in repr(got)
    html = got.prediction._repr_html_()
    assert "lambda_max &gt; 0" in html
    assert "<table>" in got._repr_html_()


def test_caveats_and_widths() -> None:
    """The width is that of the theory, for symmetric and other V; None where no law is known."""
    turned = np.linalg.qr(np.random.default_rng(1).standard_normal((3, 3)))[0]
    value = turned @ np.diag([-2.0, -4.0, -6.0]) @ turned.T
    got = predict(ms.Attention(dim=3, beta=9.0, value=value))
    assert got.width is not None
    assert got.width.median == pytest.approx(ms.theory.cloud_width([2.0, 3.0], 9.0).median, rel=1e-6)
    assert f"{got.width.median:.3g} rad" in got.caveat
    doubled = predict(ms.Attention(dim=3, beta=4.5, query=2.0 * np.eye(3), value=value))
    assert doubled.width is not None
    assert doubled.width.median == pytest.approx(got.width.median, rel=1e-9)
    skewed = np.array([[-1.0, 0.3, 0.2], [0.0, -2.0, 1.0], [0.0, -0.5, -3.0]])
    assert predict(ms.Attention(dim=3, beta=9.0, value=skewed)).width is not None
    query = np.random.default_rng(0).standard_normal((3, 3))
    for model in (
        ms.Attention(dim=3, beta=9.0, query=query, value=value),
        ms.Attention(dim=3, beta=9.0, value=-np.eye(3)),
        ms.Attention(dim=3, beta=9.0, value=jordan(-1.0, 3)),
    ):
        assert predict(model).width is None
    assert "wider than the pi/6" in predict(ms.Attention(dim=3, beta=4.0, value=np.diag([-1.0, -1.2, -1.2]))).caveat
    assert "exponential in beta" in predict(ms.Attention(dim=3, beta=9.0)).caveat
    negative = predict(ms.Attention(dim=3, beta=2.0, key=-np.eye(3), value=np.diag([1.0, 0.5, 0.2])))
    assert "beta xi^T Q^T K xi = -2" in negative.caveat


def test_what_is_zero_to_rounding_is_zero() -> None:
    """Heads that cancel leave rounding errors, whose spectrum means nothing; so do tolerances below rounding."""
    generator = np.random.default_rng(4)
    part = generator.standard_normal((4, 4))
    parts = (part, -part + 1e-17 * generator.standard_normal((4, 4)), 0.1 * part, 0.2 * part, -0.3 * part)
    left = np.sum(parts, axis=0)
    assert 0 < np.abs(left).max() < 1e-15
    heads = tuple(ms.Head(value=one, beta=2.0) for one in parts)
    got = predict(ms.Attention(dim=4, heads=heads))
    assert (got.eigenvalue, got.is_complex, got.row, got.multiplicity) == (0.0, False, None, 4)
    turned = np.linalg.qr(generator.standard_normal((5, 5)))[0]
    value = turned @ np.diag([0.0, 0.0, -1.0, -2.0, -3.0]) @ turned.T
    for tolerance in (0.0, 1e-16, 1e-12, 1e-9):
        got = predict_value(value, tolerance=tolerance)
        assert (got.eigenvalue, got.row, got.multiplicity) == (0.0, None, 2)
        orthogonal = predict_value(1.1 * turned @ turned.T, tolerance=tolerance)
        assert (orthogonal.row, orthogonal.basis, orthogonal.multiplicity) == (1, "theorem", 5)


def test_others_do_not_gather_behind_a_shrinking_pair() -> None:
    """Under V = -a I + J the angle between two tokens obeys phi' = w (a sin phi + cos phi - 1): 0 repels, 2 atan(a) attracts."""
    model = ms.Attention(dim=2, beta=4.0, value=np.array([[-0.5, -1.0], [1.0, -0.5]]))
    angles = np.array([0.0, 0.1])
    run = ms.simulate(model, np.column_stack([np.cos(angles), np.sin(angles)]), times=[100.0], engine="reference")
    assert sphere.distance(run.final[1], run.final[0]) == pytest.approx(2 * np.arctan(0.5), abs=1e-3)
    got = classify(run)
    assert "do not gather" in got.prediction.reason
    assert "negative" in got.prediction.caveat
    assert got.configuration == got.prediction.configuration == "token 1 rotating in L, the others apart from it"
    assert got.as_predicted
    together = classify(finished(model.value, jitter(np.tile([0.6, 0.8], (4, 1)), 1e-5)))
    assert (together.configuration, together.as_predicted) == ("one point rotating in L", False)


@pytest.mark.parametrize("value", [pair(0.0, 1.0), block_diag(pair(0.0, 1.0), [[0.0]])], ids=["circle", "sphere"])
def test_nothing_is_said_of_the_others_under_a_skew_value(value: np.ndarray) -> None:
    got = predict_value(value)
    assert (got.row, got.configuration, got.basis) == (None, "token 1 rotating in L", "none")
    assert "nothing is known of the others" in got.reason
    assert "real part is 0" in got.caveat
    end = classify(finished(value, sphere.uniform(5, len(value), 0)))
    assert (end.configuration, end.as_predicted) == ("token 1 rotating in L", True)


@pytest.mark.parametrize("options", [{}, {"times": [0.0, 3.0, 60.0]}], ids=["dense", "times"])
def test_classify_of_several_models_begins_at_the_last_joint(options: dict) -> None:
    """The first model moves token 1; where it was when the identity took over is where all end (Theorem 4.1)."""
    first, last = (ms.Attention(dim=2, beta=1.0, value=v) for v in (np.diag([1.0, -1.0]), np.eye(2)))
    start = sphere.uniform(4, 2, 1)
    run = ms.simulate(ms.Schedule([(0.0, first), (3.0, last)]), start, **(options or {"until": 60.0}))
    assert sphere.distance(run.final[0], start[0]) > 0.1
    got = classify(run)
    assert (got.row, got.as_predicted) == (1, True)
    with pytest.raises(UnsupportedError, match="took over at t = 3"):
        classify(ms.simulate(ms.Schedule([(0.0, first), (3.0, last)]), start, times=[0.0, 60.0]))
    layered = ms.simulate([first, first, last, last], start, step=0.5)
    expected = max(sphere.distance(x, layered.at(1.0)[0]) for x in layered.final)
    assert classify(layered).features.to_start == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("dim", "beta", "seed"), [(2, 40.0, 1), (3, 40.0, 3), (5, 30.0, 2)])
def test_rounding_is_no_motion_however_long_a_run_was(dim: int, beta: float, seed: int) -> None:
    """Full attention is not in the atlas. All tokens at one place: rounding of 1e-16, for 1e30 units of time, was called unsettled."""
    model = ms.Attention(dim=dim, beta=beta, mask=ms.Full())
    run = ms.simulate(model, sphere.uniform(12, dim=dim, seed=seed), until="settled", progress=False)
    assert run.end > 1e12
    found = classify(run)
    assert found.configuration == "none of the atlas"
    assert found.features.drift <= 1e-3
    # Nothing was predicted: that is no prediction that came true.
    assert "nothing is predicted: the atlas covers no mask Full()" in repr(found)
    assert "(the atlas covers no mask Full() (only Causal))" in repr(found.prediction)


def test_forces_below_rounding_are_motion_where_time_is_long_enough() -> None:
    """Two tokens under full attention: each falls at half of the rate exp(beta (cos - 1)) sin, exact however small that is."""
    model = ms.Attention(dim=2, beta=30.0, mask=ms.Full())

    def speed(gap: float) -> float:
        weight = math.exp(30.0 * (math.cos(gap) - 1.0))
        return weight / (1.0 + weight) * math.sin(gap)

    assert speed(2.2) < 1e-16
    for way, word in ((1e-5, "none of the atlas"), (1e-2, "unsettled")):
        start = sphere.from_angle(np.array([0.0, 2.2]))
        run = ms.simulate(model, start, times=[way / speed(2.2)], method="rodas", progress=False)
        found = classify(run)
        assert found.configuration == word
        np.testing.assert_allclose(found.speed, speed(float(sphere.distance(*run.final))), rtol=1e-9)

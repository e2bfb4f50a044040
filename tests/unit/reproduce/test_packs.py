"""What the packs compute by short cuts, against the long way round."""

import numpy as np
import pytest
import xarray as xr
from scipy import linalg

import metastable as ms
from metastable.errors import ConvergenceError
from metastable.reproduce import Settings
from metastable.reproduce.draws import whole
from metastable.reproduce.papers.p2312_10794 import collapse, gradient, phase_diagram
from metastable.reproduce.papers.p2410_06833 import merging_order
from metastable.reproduce.papers.p2410_23228 import cluster_number, linear_growth
from metastable.reproduce.papers.p2507_22857 import repulsion
from metastable.reproduce.papers.p2510_22026 import speeds
from metastable.reproduce.papers.p2512_01868 import long_context
from metastable.reproduce.papers.p2605_09213 import formulas, sampling
from metastable.reproduce.papers.p2606_05140 import diagram, hysteresis, phases


def test_tokens_in_their_span_move_as_in_the_whole_space():
    whole = ms.sphere.uniform(6, dim=40, seed=np.random.default_rng(3))
    small = phase_diagram.uniform_in_span(6, 40, np.random.default_rng(3))
    assert small.shape == (6, 6)
    runs = [
        ms.simulate(ms.Attention(dim=x.shape[1], beta=3.0, mask=ms.Full()), x, times=[2.0], rtol=1e-9, atol=1e-12)
        for x in (whole, small)
    ]
    np.testing.assert_allclose(runs[0].final @ runs[0].final.T, runs[1].final @ runs[1].final.T, atol=1e-8)


def test_the_passing_of_a_pair_is_found_between_output_times():
    times = np.array([0.0, 1.0, 2.0, 3.0])
    cosines = np.array([[0.0, 0.998, 1.0, 1.0], [0.0, 1.0, 0.5, 0.6], [1.0, 1.0, 1.0, 1.0]])
    np.testing.assert_allclose(phase_diagram.first_passing(times, cosines), [1.5, np.inf, 0.0])


def test_the_sharpening_is_not_judged_where_no_temperature_has_gathered():
    small = {**phase_diagram.PHASE_DIAGRAM.parameters, **phase_diagram.PHASE_DIAGRAM.quick, "dims": (2,), "until": 1.0}
    data = phase_diagram.PHASE_DIAGRAM.measure(small, Settings(members=2), lambda share: None)
    assert phase_diagram.PHASE_DIAGRAM.judge(data)[-1].verdict == "not available"


def test_the_width_of_the_transition_has_its_error_from_the_draws():
    """The bootstrap against the spread over independent samples; the same temperatures for every d."""
    generator = np.random.default_rng(0)
    samples = 10 + generator.standard_normal((60, 3, 100))
    widths = [phase_diagram.relative_width(sample) for sample in samples]
    errors = [phase_diagram.width_of(sample).error for sample in samples[:5]]
    assert np.mean(errors) == pytest.approx(np.std(widths), rel=0.25)
    crossing = np.stack([samples[0], samples[1]])
    crossing[0, 2, 5] = np.inf
    data = xr.Dataset(
        {"crossing": (("dim", "beta", "draw"), crossing)}, coords={"dim": [2, 8], "beta": [1.0, 2.0, 3.0]}
    )
    assert "mean over beta = 1, 2 (" in phase_diagram._sharpening(data).measured


def test_norms_are_compared_start_by_start_and_open_ends_count():
    """Four runs of one start are one draw; a run without an end counts as ending there, for either norm."""
    names = list(speeds.NORMS)
    depth = 10.0 * np.exp(1e-3 * np.random.default_rng(0).standard_normal((len(names), 4, 6)))
    depth[names.index("Pre-LN")] = np.array([20.0, 20.0, 20.0, np.inf])[:, None]
    depth[names.index("Pre-LN")] *= np.linspace(0.9, 1.1, 6)
    depth[names.index("Peri-LN")] = 10.0 * np.array([0.5, 2.0, 1.0, 1.1, 0.9, 1.0])
    data = xr.Dataset(
        {"depth": (("norm", "beta", "draw"), depth)},
        coords={"norm": names, "beta": [0.0, 1.0, 2.0, 3.0]},
        attrs={"until": 100.0, "gap": 0.01, "tokens": 24, "dim": 8},
    )
    first, second, third = speeds._judge_depth(data)
    assert first.verdict == "agrees"
    assert "at least 2.9" in first.measured  # (2 * 2 * 2 * 10)^(1/4), but for the spread
    assert "6 runs of Pre-LN and 0 of Post-LN had not come so far by t = 100" in first.measured
    assert second.verdict == third.verdict == "not available"
    assert speeds._judge_depth(data.isel(norm=[3, 1, 2, 0, 4, 5]).assign_coords(norm=names))[0].verdict == "disagrees"
    speeds._draw_depth(data)


def test_the_energy_has_the_velocity_of_usa_as_its_gradient():
    x = ms.sphere.uniform(5, dim=3, seed=0)
    assert gradient.gradient_defect(x, 2.0) < 1e-13


@pytest.mark.parametrize(("first", "second"), [(1, 1), (3, 1)])
def test_the_wait_of_a_pair_is_that_of_a_run(first, second):
    beta, angle, radius = 8.0, 1.2, 0.2
    x = ms.sphere.from_angle(np.repeat([0.0, angle], [first, second]))
    run = ms.simulate(ms.Attention(dim=2, beta=beta, mask=ms.Full()), x, until=400.0, method="tsit5", rtol=1e-9)
    wait = merging_order.pair_wait(angle, first, second, beta, radius)
    there = run.at(wait)
    assert ms.sphere.distance(there[0], there[-1]) == pytest.approx(radius, rel=1e-5)


def test_the_model_of_position_biases_has_the_weights_of_the_paper():
    tokens, beta, slope = 12, 1.5, 2.0
    x = ms.sphere.uniform(tokens, dim=2, seed=1)
    theta = np.arctan2(x[:, 1], x[:, 0])
    difference = theta[:, None] - theta[None, :]
    turning = -(formulas.weights(tokens, slope) * np.sin(difference) * np.exp(beta * np.cos(difference))).sum(axis=1)
    velocity = ms.velocity(sampling.model(tokens, beta, slope), x)
    np.testing.assert_allclose(x[:, 0] * velocity[:, 1] - x[:, 1] * velocity[:, 0], turning, atol=1e-14)
    rows = formulas.weights(tokens, slope)
    np.testing.assert_allclose(rows[1:].sum(axis=1), 1.0)
    assert rows[5, 2] / rows[5, 4] == pytest.approx(np.exp(-slope * 2 / tokens))


def test_starts_of_a_batch_are_spread_evenly():
    readers = sampling.reader_places(64)
    assert readers[-1] == 63
    starts = sampling.batch_of_starts(64, readers, 16, seed=0)
    others = np.setdiff1d(np.arange(64), readers)
    for mode in (1, 2, 3):
        assert np.abs(np.exp(1j * mode * starts[:, others]).mean(axis=0)).max() < 1e-12
    assert np.ptp(starts[:, readers], axis=0).max() == 0


def test_influence_is_the_limit_of_sums_over_tokens():
    gaps = []
    for tokens in (50, 100, 200):
        sums = formulas.finite_influence(tokens, 2, 1.0, 1.0, 1.0)[-1, tokens // 10 : -1]
        s = (np.arange(tokens // 10, tokens - 1) + 0.5) / tokens
        gaps.append(np.abs(sums - formulas.influence(s, 2, 1.0, 1.0, 1.0)).max())
    assert gaps[0] > 1.8 * gaps[1] > 3.2 * gaps[2]
    assert formulas.response(0.3, 0.0) == pytest.approx(0.3)
    assert formulas.response(0.3, 1e-9) == pytest.approx(0.3, rel=1e-8)


def test_one_layer_of_equiangular_tokens_is_that_of_explicit_weights():
    for tokens, rho, gamma in ((5, 0.3, 0.7), (30, 0.1, 1.5)):
        x = long_context.equiangular_tokens(tokens, rho)
        np.testing.assert_allclose(x @ x.T, rho + (1 - rho) * np.eye(tokens), atol=1e-14)
        weights = np.exp(gamma * np.log(tokens) * (x @ x.T))
        layer = (weights / weights.sum(axis=1, keepdims=True)) @ x
        layer /= np.linalg.norm(layer, axis=1, keepdims=True)
        assert long_context.layer_cosine(np.log(tokens), gamma, rho) == pytest.approx(
            float(layer[0] @ layer[1]), rel=1e-12
        )
    np.testing.assert_array_equal(long_context.limit([0.5, 2.0, 3.0], 0.5), [1.0, 0.8, 0.5])


def test_growth_of_resting_clusters_is_that_of_single_tokens():
    """Clusters of 2, 2 and 1 tokens at rest: the linearised flow of all five has the same largest rate, but for turning."""
    masses, beta = np.array([2.0, 2.0, 1.0]), -3.0
    angles = repulsion.rest(2 * np.pi * np.arange(3) / 3, masses, beta)
    assert angles is not None
    every = np.repeat(angles, [2, 2, 1])
    rates = np.sort(linalg.eigvals(repulsion.jacobian(every, np.ones(5), beta)).real)
    rates = np.delete(rates, np.argmin(np.abs(rates)))
    assert repulsion.growth(angles, masses, beta) == pytest.approx(rates.max(), abs=1e-9)
    step = 1e-6
    moved = [repulsion.forces(every + step * sign * np.eye(5)[2], np.ones(5), beta) for sign in (1, -1)]
    np.testing.assert_allclose(
        (moved[0] - moved[1]) / (2 * step), repulsion.jacobian(every, np.ones(5), beta)[:, 2], atol=1e-6
    )
    assert repulsion.mildest(2 * np.pi * np.arange(3) / 3, np.ones(3), -2.0) == pytest.approx(-2 / 3, abs=1e-5)
    assert repulsion.mildest(2 * np.pi * np.arange(4) / 4, np.ones(4), -2.0) == -np.inf  # squares are never stable


def test_the_search_between_the_edges_finds_stable_states_where_there_are_some():
    def search(edges):
        found = repulsion.search_inside(np.random.default_rng(0), 100, 6, lambda share: None, edges)
        assert np.all((found[:, 0] > edges[0]) & (found[:, 0] < edges[1]))
        return found[np.isfinite(found[:, 1]), 1]

    assert (search((-3.0, -1.0)) < 0).any()
    inside = search((repulsion.FAILS, repulsion.PROVED))
    assert inside.size > 20
    assert inside.min() > 0


def triangles(**changes):
    """A dataset of the item "triangles" as it should be, but for `changes`."""
    edges = {"polygon_edge": [-2 / 3, -2.1, -4.4], "triangle_edge": [-2 / 3, -2.2, -1.4, -2 / 3, -1.7]}
    values = {**edges, "random_edge": [-99.0, -0.7], "inside_growth": [0.1, np.nan], **changes}
    dims = {"polygon_edge": "polygon", "triangle_edge": "tokens", "inside_growth": "inside"}
    return xr.Dataset(
        {name: (dims.get(name, "attempt"), value) for name, value in values.items()},
        coords={"polygon": [3, 5, 7], "tokens": [3, 4, 5, 6, 7]},
    )


@pytest.mark.parametrize(
    ("changes", "verdicts"),
    [
        ({}, ["agrees"] * 4),
        ({"inside_growth": [0.1, -0.1]}, ["agrees"] * 3 + ["disagrees"]),
        ({"inside_growth": [np.nan, np.nan]}, ["agrees"] * 3 + ["not available"]),
        ({"random_edge": [-99.0, -0.5]}, ["agrees"] * 3 + ["disagrees"]),
        ({"triangle_edge": [-2 / 3, -2.2, -1.4, -0.7, -1.7]}, ["agrees", "disagrees", "agrees", "agrees"]),
        ({"triangle_edge": [-2 / 3, -2.2, -1.4, -2 / 3, -2.3]}, ["agrees", "agrees", "disagrees", "agrees"]),
    ],
)
def test_triangles_are_judged_by_their_tests(changes, verdicts):
    assert [one.verdict for one in repulsion.TRIANGLES.judge(triangles(**changes))] == verdicts


def test_a_trend_is_judged_whatever_the_shares():
    """Against random relabellings, with shares of one at some or every beta, and with merges that are copies of one another."""
    generator = np.random.default_rng(1)
    x, alone = np.repeat([10.0, 20.0, 40.0], [150, 300, 600]), np.arange(1050)
    hits = generator.uniform(size=x.size) < 0.8 + 0.001 * x
    mixed = np.array([((x - x.mean()) * generator.permutation(hits)).sum() for _ in range(4000)])
    expected = ((x - x.mean()) * hits).sum() / mixed.std()
    found = merging_order.trend_score(x, hits, alone)
    assert found == pytest.approx(expected, rel=0.1)
    # Four copies of each merge are no more evidence than one.
    copies = [np.tile(values, 4) for values in (x, hits, alone)]
    assert merging_order.trend_score(*copies) == pytest.approx(found, rel=1e-9)
    judge = merging_order._judge_trend
    assert judge(x, np.ones(x.size, bool), alone).verdict == "not available"
    assert "no trend" in judge(x, np.ones(x.size, bool), alone).measured
    assert judge(x, x > 15, alone).verdict == "agrees"
    assert judge(x, x < 15, alone).verdict == "disagrees"


def test_the_distance_to_a_steep_curve_is_not_called_a_depth():
    crossing = np.repeat([[[1.0], [2.0], [9.0]]], 4, axis=2)
    data = xr.Dataset(
        {"crossing": (("dim", "beta", "draw"), crossing), "curve": ("beta", [1.0, 2.0, 12.0])},
        coords={"dim": [128], "beta": [1.0, 2.0, 3.0], "time": np.linspace(0, 10, 11)},
    )
    found = phase_diagram._judge(data)[0]
    assert "at most 0.30 cells from the curve" in found.measured
    assert "the depths themselves differ by up to 3.0 cells, at beta = 3" in found.measured


def ramps(rested, rising, density):
    """A dataset of the item "hysteresis" with kappa = 0.5 and 0.8 below the fold (0.9), of which the first two lines see little."""
    order = np.zeros((2, 2, 3))
    order[1, :, :2], order[1, :, 2] = rising, 0.7
    return xr.Dataset(
        {
            "order": (("way", "draw", "kappa"), order),
            "density_order": ("kappa", [*density, 0.7]),
            "rested_order": (("draw", "below"), rested),
            "branch_kappa": ("point", [1.0, 0.9, 1.2]),
            "branch_order": ("point", [0.0, 0.5, 0.8]),
        },
        coords={"way": ["up", "down"], "kappa": [0.5, 0.8, 0.95]},
        attrs={"beta": 5.0, "tokens": 1000, "onset": 1.0, "fold": 0.9, "rest": 2.0, "long_rest": 20.0},
    )


def test_below_the_fold_the_long_rest_decides():
    low, kept = [[0.02, 0.04], [0.03, 0.03]], [[0.1, 0.3], [0.1, 0.5]]
    lines = hysteresis._below_the_fold(ramps(low, kept, (0.1, 0.45)))
    assert [(one.verdict, one.ours) for one in lines] == [("agrees", False), ("agrees", True)]
    assert hysteresis._below_the_fold(ramps([[0.02, 0.04], [0.03, 0.5]], kept, (0.1, 0.45)))[0].verdict == "disagrees"
    assert hysteresis._below_the_fold(ramps(low, kept, (0.1, 0.05)))[1].verdict == "disagrees"


def test_the_mean_gap_is_the_mean_over_pairs():
    x = ms.sphere.uniform(7, dim=3, seed=2)
    pairs = [1 - x[i] @ x[j] for i in range(7) for j in range(i)]
    assert speeds.mean_gap(x) == pytest.approx(np.mean(pairs), rel=1e-12)


def test_modes_of_tokens_and_of_densities_with_their_noise():
    x = ms.sphere.uniform(50, dim=2, seed=0)
    theta = np.arctan2(x[:, 1], x[:, 0])
    np.testing.assert_allclose(linear_growth.fourier(x, 3)[1], np.exp(-2j * theta).mean(), atol=1e-14)
    sizes = [np.abs(cluster_number.noisy_density(400, 8, np.random.default_rng(k)).fourier(8)) ** 2 for k in range(200)]
    assert np.mean(sizes) == pytest.approx(1 / 400, rel=0.15)
    assert cluster_number.crests(ms.meanfield.Density.perturbed(2, {5: 0.3})) == 5


def test_onset_and_threshold_agree_with_the_library():
    for dim, beta in ((2, 1.0), (5, 3.0)):
        assert phases.onset_formula(dim, beta) == pytest.approx(ms.meanfield.critical_kappa(phases.model(dim, beta)))
    assert phases.threshold_formula(3) == pytest.approx(ms.meanfield.tricritical_beta(3))


def test_a_run_that_ended_early_is_no_result():
    x = ms.sphere.uniform(8, dim=2, seed=0)
    model = ms.Attention(dim=2, beta=4.0, mask=ms.Full())
    run = ms.simulate(model, x, until=5.0)
    assert whole(run) is run
    with pytest.warns(ms.errors.StoppedEarlyWarning):
        short = ms.simulate(model, x, until=1e3, method="tsit5", max_steps=5)
    with pytest.raises(ConvergenceError, match="max_steps"):
        whole(short)


def test_the_tail_of_a_collapse_is_found_in_a_horizon_of_seven_decades():
    assert collapse.time_below(lambda t: 1.0 / (1.0 + t), 1e-3, 1e7) == pytest.approx(999.0, abs=2e-3)
    assert collapse.time_below(lambda t: 0.0, 1e-3, 1e7) == 0.0
    assert collapse.time_below(lambda t: 1.0, 1e-3, 1e7) == 1e7
    small = {**collapse.HEMISPHERE.parameters, "dims": (2,), "betas": (8.0,)}
    data = collapse.HEMISPHERE.measure(small, Settings(members=2), lambda share: None)
    np.testing.assert_allclose(data.rate.values, 1.0, atol=0.02)
    assert np.isfinite(data.since.values).all()


def test_crests_of_tokens_are_those_of_their_density():
    density = ms.meanfield.Density.perturbed(2, {5: 0.4, 2: 0.1})
    values = cluster_number.smoothed(density.quantiles(20_000), 32)
    angles = np.linspace(-np.pi, np.pi, 4096, endpoint=False) + np.pi / 4096
    np.testing.assert_allclose(values, density.at_angle(angles), atol=2e-3)
    assert cluster_number.arcs(values) == cluster_number.crests(density) == 5


def test_folds_and_equal_energies_are_those_of_an_independent_solution():
    """Numbers of states found on a grid of Gauss nodes at fixed |mean x|, with the interaction integrated over the circle across."""
    for case, fold, equal in (((2, 4.0), 0.387069, 0.39147), ((3, 3.0), 1.208448, 1.23373)):
        begun, turned, even = diagram.lines(*case)
        assert begun == pytest.approx(phases.onset_formula(*case), rel=1e-8)
        assert turned == pytest.approx(fold, abs=1e-6)
        assert even == pytest.approx(equal, abs=2e-5)
    begun, turned, even = diagram.lines(2, 2.0)
    assert begun == turned == even


def test_the_free_energy_is_that_of_sums_over_nodes():
    model = phases.model(2, 3.0, 1.2)
    state = ms.meanfield.stationary(model, ms.meanfield.Density.perturbed(2, {1: 0.8}))
    theta = 2 * np.pi * np.arange(256) / 256
    mu = state.density(np.stack([np.cos(theta), np.sin(theta)], axis=1))
    attraction = np.exp(3.0 * np.cos(theta[:, None] - theta[None, :]))
    energy = (mu * np.log(mu)).mean() / 1.2 - (mu @ attraction @ mu - attraction.sum()) / 256**2 / 6.0
    assert diagram.free_energy(state) == pytest.approx(energy, rel=1e-9)


def test_where_the_fold_line_leaves_is_extrapolated():
    beta = np.array([2.0, 2.4, 2.6, 2.8, 3.0])
    root = np.maximum(beta - 2.5, 0.0) * (0.3 + 0.02 * beta)
    assert diagram.leaving_point(beta, 1 - root**2) == pytest.approx(2.5, abs=1e-3)


def test_the_density_on_a_slow_ramp_follows_the_branch():
    start = phases.onset_formula(2, 5.0)
    ordered = ms.meanfield.branch(phases.model(2, 5.0), "kappa", (0.3 * start, 1.6 * start))
    kappas = start * np.array([0.8, 0.95, 1.05])
    order = hysteresis.ramp_of_density(ordered, 5.0, kappas, 8.0)
    turn = int(np.argmin(ordered.values))
    stable = np.interp(kappas[1:], ordered.values[turn:], ordered.order_parameter[turn:])
    np.testing.assert_allclose(order[1:], stable, atol=0.01)
    assert order[0] < 0.05

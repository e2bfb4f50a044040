"""Ensembles that were joined along something else than members, and summaries of what was selected of them."""

import functools
import json
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import xarray as xr

import metastable as ms
from metastable.analysis import cluster_count
from metastable.ensembles import digests
from metastable.errors import InvalidInputError
from metastable.stores import membership
from tests.small_ensembles import DROP, made


def stored(stats, tmp_path):
    ms.save_ensemble(stats, tmp_path / "stats.zarr")
    return ms.load_ensemble(tmp_path / "stats.zarr")


def test_how_each_part_went_is_kept(tmp_path):
    """Statuses and steps of all parts but the first were lost, and the store said "success"."""
    parts = made(max_steps=1000), made(64.0, max_steps=1)
    joined = xr.concat(parts, xr.IndexVariable("beta", [4.0, 64.0]), **DROP)
    found = stored(joined, tmp_path)
    assert found.status.dims == ("beta", "member")
    assert found.status.values.tolist() == [["success"] * 3, ["max_steps"] * 3]
    for name in ("accepted", "rejected", "evaluations"):  # (what both share is said once)
        np.testing.assert_array_equal(found[name].broadcast_like(joined[name]), joined[name])
    assert found.attrs["status"] == "incomplete" == ms.summarize(joined).attrs["status"]
    assert "model" not in found.attrs
    np.testing.assert_array_equal(found.clusters, joined.clusters)


def test_what_parts_share_is_said_once(tmp_path):
    joined = xr.concat([made(), made(64.0)], xr.IndexVariable("beta", [4.0, 64.0]), **DROP)
    found = stored(joined.where(joined.clusters > 1), tmp_path)
    assert found.status.dims == ("member",)
    assert found.attrs["status"] == "success"


@pytest.mark.parametrize("axis", ["beta", "time"])
def test_parts_of_another_model_are_refused_under_the_attributes_of_the_first(tmp_path, axis):
    later = (2.0, 3.0) if axis == "time" else (0.0, 1.0)
    one, other = made(), made(16.0, later)
    with pytest.raises(InvalidInputError, match="3 members of stats were computed with another model"):
        stored(xr.concat([one, other], axis), tmp_path)
    assert not (tmp_path / "stats.zarr").exists()
    found = stored(xr.concat([one, other], axis, **DROP), tmp_path)
    assert "model" not in found.attrs
    assert found.attrs["values"] != "as computed"


def test_whole_parts_of_one_model_are_as_computed(tmp_path):
    first, later, other = made(), made(times=(2.0, 3.0)), made(seed=1)
    for number, (joined, seeds) in enumerate(
        (
            (xr.concat([first, later], "time", **DROP), 0),
            (xr.concat([first, later], "time"), 0),
            (xr.concat([first, other], "replica"), [0, 1]),
        )
    ):
        ms.save_ensemble(joined, tmp_path / f"{number}.zarr")
        found = ms.load_ensemble(tmp_path / f"{number}.zarr")
        assert found.attrs["values"] == "as computed"
        assert found.attrs["seed"] == seeds
        np.testing.assert_array_equal(found.x, joined.x)
        ms.save_ensemble(found, tmp_path / f"{number} again.zarr")


@pytest.mark.parametrize("place", [{"time": 0}, {"time": 3}, {"time": 3, "member": 1}])
def test_changed_values_of_any_part_are_refused(tmp_path, place):
    joined = xr.concat([made(), made(times=(2.0, 3.0))], "time")
    joined.clusters[place] = 7
    with pytest.raises(InvalidInputError, match="not all of its parts"):
        stored(joined, tmp_path)


def test_selections_of_joined_ensembles_are_kept_but_not_checked(tmp_path):
    times = xr.concat([made(), made(times=(2.0, 3.0))], "time", **DROP)
    seeds = xr.concat([made(), made(seed=1)], "replica", **DROP)
    chosen = (
        times.isel(time=slice(0, 3)),
        times.drop_vars("x"),
        seeds.isel(time=[1]),
        seeds.drop_vars("x"),
    )
    for number, stats in enumerate(chosen):
        ms.save_ensemble(stats, tmp_path / f"{number}.zarr")
        found = ms.load_ensemble(tmp_path / f"{number}.zarr")
        assert found.attrs["values"] != "as computed"
        np.testing.assert_array_equal(found.clusters, stats.clusters)


def test_joined_ensembles_without_what_is_said_of_members_are_no_traceback(tmp_path):
    seeds = xr.concat([made(), made(seed=1)], "replica", **DROP)
    for number, stats in enumerate((seeds.drop_vars("accepted"), seeds.drop_vars("status"))):
        ms.save_ensemble(stats, tmp_path / f"{number}.zarr")
        assert ms.load_ensemble(tmp_path / f"{number}.zarr").attrs["values"] != "as computed"
    with pytest.raises(InvalidInputError, match="not all of its parts are whole and as computed"):
        stored(seeds.assign(clusters=seeds.clusters.astype(str)), tmp_path)


def late(**more):
    return made(times=(2.0, 3.0), **more)


EDITED_TIMES = {
    "of one part": lambda how: xr.concat([made(), late().assign_coords(time=[102.0, 103.0])], "time", **how),
    "of all": lambda how: xr.concat([made(), late()], "time", **how).assign_coords(time=[0.0, 10.0, 20.0, 30.0]),
    "of replicas": lambda how: xr.concat([made(), made(seed=1)], "replica", **how).assign_coords(time=[5.0, 6.0]),
    "overridden": lambda how: xr.concat([made(), late(seed=1)], "replica", join="override", **how),
    "overridden members": lambda how: xr.concat([made(), late(seed=1)], "member", join="override", **how),
}
SELECTED = ("of one part", "of all", "overridden members")
"""Where attributes that differ were dropped, nothing tells these from parts of which times were left out."""


@pytest.mark.parametrize("edited", EDITED_TIMES)
def test_times_of_joined_ensembles_that_were_changed_are_not_as_computed(tmp_path, edited):
    """Digests knew no times: values at t = 2 were stored as those at t = 102, or at t = 0, "as computed"."""
    wrong = r"whole and as computed|not (what was|those that were) computed any more"
    with pytest.raises(InvalidInputError, match=wrong):
        stored(EDITED_TIMES[edited]({}), tmp_path)
    stats = EDITED_TIMES[edited](DROP)
    if edited in SELECTED:
        assert "not checked" in stored(stats, tmp_path).attrs["values"]
    else:
        with pytest.raises(InvalidInputError, match=wrong):
            stored(stats, tmp_path)


def test_parts_may_have_any_order_of_times(tmp_path):
    joined = xr.concat([late(), made()], "time", **DROP)
    assert stored(joined, tmp_path).attrs["values"] == "as computed"
    ms.save_ensemble(joined.sortby("time"), tmp_path / "sorted.zarr")
    assert ms.load_ensemble(tmp_path / "sorted.zarr").attrs["values"] == "as computed"


def test_parts_of_different_sizes_are_told_how(tmp_path):
    parts = [made(), made(64.0).isel(member=[0, 1])]
    axis = xr.IndexVariable("beta", [4.0, 64.0])
    with pytest.raises(InvalidInputError, match='join="inner"'):
        ms.summarize(xr.concat(parts, axis, join="outer", **DROP))
    assert stored(xr.concat(parts, axis, join="inner", **DROP), tmp_path).sizes["member"] == 2


def test_two_seeds_along_time_are_no_traceback(tmp_path):
    joined = xr.concat([made(), made(times=(2.0, 3.0), seed=1)], "time", **DROP)
    assert stored(joined, tmp_path).attrs["seed"] == [0, 1]


def drawn(seed):
    return ms.ensemble(
        lambda generator: ms.Attention(dim=2, beta=float(generator.uniform(4.0, 9.0))),
        tokens=5,
        members=3,
        times=[0.0, 1.0],
        seed=seed,
        engine="reference",
        observe={"clusters": ms.observe.clusters()},
    )


def test_lengths_of_drawn_models_are_said_once_where_something_holds(tmp_path):
    """`where` spread `clusters_radius` over times: a ValueError of NumPy, and a panel of its own."""
    one, joined = drawn(0), xr.concat([drawn(0), drawn(1)], "replica")
    for number, stats in enumerate((one, joined)):
        ms.save_ensemble(stats.where(stats.clusters > 0), tmp_path / f"{number}.zarr")
        found = ms.load_ensemble(tmp_path / f"{number}.zarr")
        assert found.attrs["values"] == "as computed"
        assert "time" not in found.clusters_radius.dims
    with pytest.raises(InvalidInputError, match="not all of its parts"):
        stored(joined.where(joined.time > 0), tmp_path)
    assert [ax.get_title(loc="left") for ax in ms.plot_ensemble(one.where(one.clusters > 0)).axes] == ["clusters"]


def test_one_masked_moment_of_a_part_that_stopped_is_no_missing_member(tmp_path):
    """`where` masks the status with the values, and the member was "not in all of the ensembles that were joined"."""
    early = made(64.0, times=(2.0, 3.0), max_steps=1)
    joined = xr.concat([made(64.0), early], "time", **DROP)
    hole = (joined.member == 1) & (joined.time == 3)
    masked = joined.where(~hole)
    known = joined.status.transpose("time", "member").values
    assert ms.summarize(masked).attrs["status"] == "incomplete"
    found = stored(masked, tmp_path)
    np.testing.assert_array_equal(found.status.transpose("time", "member"), known)
    assert found.clusters.sel(member=1, time=3).isnull()
    assert "not checked" in found.attrs["values"]
    nobody = joined.where(joined.time < 3)
    ms.summarize(nobody)
    with pytest.raises(InvalidInputError, match=r"how all members went.*dropna\('time', how='all'\)"):
        ms.save_ensemble(nobody, tmp_path / "nobody.zarr")
    ms.save_ensemble(nobody.dropna("time", how="all"), tmp_path / "nobody.zarr")


@pytest.mark.parametrize("seed", [0, 2**63 - 1, 2**63, 2**64, 2**127])
def test_seeds_of_any_size_are_joined(tmp_path, seed):
    """From 2**63 on they are text, and text beside numbers was a TypeError."""
    joined = xr.concat([made(seed=7), made(seed=seed)], "member")
    seeds = sorted([7, seed])
    assert ms.summarize(joined).attrs["seed"] == seeds
    found = stored(joined, tmp_path)
    assert found.attrs["seed"] == seeds
    assert found.attrs["values"] == "as computed"
    assert [int(item) for item in found.member_seed.values] == [7] * 3 + [seed] * 3
    ms.save_ensemble(xr.concat([found, made(seed=8)], "member"), tmp_path / "again.zarr")
    assert ms.load_ensemble(tmp_path / "again.zarr").attrs["values"] == "as computed"
    assert ms.plot_ensemble(found)._suptitle.get_text().startswith("6 members")
    other = joined.assign_coords(member_seed=("member", [str(2**65)] * 3 + ["5"] * 3))
    with pytest.raises(InvalidInputError, match="6 members of stats"):
        ms.save_ensemble(other, tmp_path / "other.zarr")


@pytest.mark.parametrize("use", [ms.summarize, ms.plot_ensemble])
def test_members_of_two_models_have_no_summary_or_picture_under_one(use):
    """The attributes are those of the first: "40 members, beta = 4", of which 20 had 64."""
    with_one_model = "another model, or otherwise.* than the attributes of stats say.*combine_attrs='drop_conflicts'"
    for seed in (0, 1):
        joined = xr.concat([made(), made(64.0, seed=seed)], "member")
        for stats in (joined, joined.isel(time=[1]), joined.where(joined.clusters > 0), joined.drop_vars("x")):
            with pytest.raises(InvalidInputError, match=with_one_model):
                use(stats)
    use(xr.concat([made(), made(64.0, seed=1)], "member", **DROP))
    use(xr.concat([made(), made(seed=1)], "member"))


def earlier(stats):
    """The ensemble as earlier versions made it: without times and origin in its digests."""
    known = json.loads(stats.attrs["computed"])
    del known["timed"]
    names = ["clusters", "x"]
    old = digests._digests(stats, names, known["origin"], timed=False)
    return stats.assign(member_digest=("member", old)).assign_attrs(computed=json.dumps(known, sort_keys=True))


def test_ensembles_of_earlier_versions(tmp_path):
    plain = xr.Dataset(
        {
            "a": (("member", "time"), np.arange(6.0).reshape(3, 2)),
            "x": (("member", "time", "c"), np.arange(12.0).reshape(3, 2, 2)),
            "status": ("member", ["success", "failed", "success"]),
            "accepted": ("member", [1, 2, 3]),
            "rejected": ("member", [0, 0, 1]),
            "evaluations": ("member", [7, 8, 9]),
        },
        coords={"member": [0, 1, 2], "time": [0.0, 1.0], "member_seed": ("member", [str(2**63)] * 3)},
    )
    wanted = [8995119798446074, 5783819302036424, 5183872479400107]  # by version 0.2.0 of November 2026
    assert digests._digests(plain, ["a", "x"], "00ff", timed=False).tolist() == wanted
    old, turned = earlier(made()), earlier(made()).isel(time=[1, 0])
    joined = xr.concat([old, earlier(late())], "time", **DROP)
    for number, (stats, known) in enumerate(((old, True), (turned, True), (joined, False))):
        ms.save_ensemble(stats, tmp_path / f"{number}.zarr")
        found = ms.load_ensemble(tmp_path / f"{number}.zarr")
        assert (found.attrs["values"] == "as computed") == known
        ms.summarize(found)
        ms.plot_ensemble(found)
    for stats in (old.assign(clusters=2 * old.clusters), old.assign_coords(time=[0.0, 2.0])):
        with pytest.raises(InvalidInputError, match=r"not (what was|those that were) computed any more"):
            ms.save_ensemble(stats, tmp_path / "edited.zarr")


def test_a_store_that_another_reader_opened_is_told_how(tmp_path):
    """It was told that 'kind' is the store's own, and to put its attribute under another name."""
    ms.save_ensemble(made(), tmp_path / "stats.zarr")
    told = pytest.raises(InvalidInputError, match=r"open it with metastable\.load_ensemble")
    with xr.open_zarr(tmp_path / "stats.zarr", consolidated=False) as found, told:
        ms.save_ensemble(found, tmp_path / "again.zarr")


# ------------------------------------------------------------------------------------------------------------ summaries


def test_infinite_members_have_no_error_and_warn_of_nothing():
    stats = made()
    far = stats.clusters.where((stats.member != 1) | (stats.time == 0), np.inf)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = ms.summarize(stats.assign(far=far))
    assert np.isinf(found.far_mean[1])
    assert np.isnan(found.far_error[1])
    np.testing.assert_array_equal(found.far_quantile[:, 0], found.clusters_quantile[:, 0])


def test_one_moment_has_a_summary():
    stats = made()
    whole, alone = ms.summarize(stats), ms.summarize(stats.sel(time=1.0))
    assert set(alone.data_vars) == set(whole.data_vars)
    xr.testing.assert_allclose(alone.drop_vars("time"), whole.sel(time=1.0).drop_vars("time"))
    over = ms.summarize(stats[["clusters"]].mean("time", keep_attrs=True))
    assert float(over.clusters_mean) == pytest.approx(float(stats.clusters.mean()))


def test_yes_and_no_have_a_share_and_text_has_none():
    stats = made()
    more = stats.assign(few=stats.clusters <= 3, note=("member", np.array(["a", "b", "a"])))
    found = ms.summarize(more)
    np.testing.assert_allclose(found.few_mean, (stats.clusters <= 3).mean("member"))
    assert not any(str(name).startswith(("note", "status", "accepted", "member_digest")) for name in found.data_vars)


def test_lengths_that_each_model_sets_are_not_measured():
    stats = ms.ensemble(
        lambda generator: ms.Attention(dim=2, beta=float(generator.uniform(4.0, 9.0))),
        tokens=5,
        members=3,
        times=[0.0, 1.0],
        seed=0,
        observe={"clusters": ms.observe.clusters()},
    )
    assert "clusters_radius" in stats
    assert set(ms.summarize(stats).data_vars) == {"clusters_mean", "clusters_error", "clusters_quantile"}


def test_variables_that_are_called_like_lengths_have_summaries():
    stats = ms.ensemble(
        ms.Attention(dim=2, beta=4.0),
        tokens=5,
        members=3,
        times=[0.0, 1.0],
        seed=0,
        observe={"cap": ms.observe.mean_cosine(), "cap_radius": ms.observe.mean_cosine()},
    )
    found = ms.summarize(stats.assign(mine=2 * stats.cap, mine_radius=3 * stats.cap))
    assert {"cap_mean", "cap_radius_mean", "mine_mean", "mine_radius_mean"} <= set(found.data_vars)


def test_empty_moments_warn_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(ms.summarize(made(64.0, max_steps=1)).clusters_mean.values[-1])


@pytest.mark.parametrize("nobody", [{"member": []}, {"time": []}])
@pytest.mark.parametrize("use", [ms.summarize, ms.plot_ensemble])
def test_empty_selections_are_refused_by_name(nobody, use):
    with pytest.raises(InvalidInputError, match="no members, or no times, left"):
        use(made().isel(nobody))


# ------------------------------------------------------------------------------------------------------- own functions


def topics(centers):
    def start(generator, tokens, dim):
        return ms.starts.mixture(tokens, dim, generator, centers=centers, concentration=200.0)

    return start


def gaussian(beta):
    return lambda generator: ms.Attention(dim=3, beta=beta, value=generator.normal(size=(3, 3)))


def above(level):
    return lambda x: float((x[:, 0] > level).mean())


def first_and_model(level):
    return lambda states, times, model: states[:, 0, 0] * model.beta + level


@dataclass(frozen=True)
class Shifted:
    by: float

    def __call__(self, generator, tokens, dim):
        return ms.sphere.retract(ms.sphere.uniform(tokens, dim=dim, seed=generator) + self.by)


def clusters_within(radius):
    return lambda x: float(ms.cluster_labels(x, radius=radius).max() + 1)


def from_then_on(since):
    return lambda states, times, model: np.where(times >= since, states[:, 0, 0], np.nan)


CODE = {
    2: lambda x: float(ms.sphere.pairwise_distance(x).max() < 0.01),
    5: lambda x: float(ms.sphere.pairwise_distance(x).max() < 2.0),
}
"""Two versions of one function, as in a notebook: what they are made with is in their code only."""


def near(target):
    return lambda x: float((x @ target > 0.99).sum())


@dataclass(frozen=True)
class Holds:
    function: object
    weights: object

    dims = ()

    def measure(self, states, *, start, model, times):
        return self.function(states[:, 0, 0]) + self.weights.sum()


def holding(value):
    weights = np.zeros((500, 3))
    weights[200] = value
    return Holds(lambda x: x, weights)


OWN = {
    "array": lambda value: {"observe": {"n": near(np.array([1.0, value, 0.0]) / np.hypot(1.0, value))}},
    "list": lambda value: {
        "model": (lambda models: lambda generator: models[generator.integers(3)])(
            [ms.Attention(dim=3, beta=beta) for beta in (1.0, 4.0, float(value))]
        )
    },
    "array in a field": lambda value: {"observe": {"n": holding(value)}},
    "function in a field": lambda value: {"observe": {"n": Holds(lambda x: value * x, np.zeros(3))}},
    "clusters": lambda value: {"observe": {"n": clusters_within(10.0**-value)}},
    "edited": lambda value: {"observe": {"n": CODE[value]}},
    "edited clusters": lambda value: {
        "observe": {"n": {2: lambda x: cluster_count(x, 0.01), 5: lambda x: cluster_count(x, 0.1)}[value]}
    },
    "of times": lambda value: {"observe": {"n": from_then_on(0.1 * value)}},
    "partial observable": lambda value: {"observe": {"n": functools.partial(cluster_count, radius=10.0**-value)}},
    "start": lambda value: {"start": topics(value)},
    "start with fields": lambda value: {"start": Shifted(value)},
    "partial": lambda value: {"start": functools.partial(ms.starts.mixture, 10, 3, concentration=value + 1.0)},
    "model": lambda value: {"model": gaussian(float(value))},
    "observable": lambda value: {"observe": {"n": above(0.1 * value)}},
    "observable of all states": lambda value: {"observe": {"n": first_and_model(value)}},
    "drawn model and observable": lambda value: {"model": gaussian(4.0), "observe": {"n": first_and_model(value)}},
}


def _own(changes, seed):
    model = ms.Attention(dim=3, beta=16.0)
    fixed = {
        "model": model,
        "tokens": 10,
        "members": 3,
        "times": [0.0, 1.0],
        "observe": {"n": ms.observe.clusters(0.3)},
    }
    if isinstance(changes.get("start"), functools.partial):
        changes = {"start": lambda generator, function=changes["start"]: function(generator, centers=3)}
    return ms.ensemble(**(fixed | changes), seed=seed)


@pytest.mark.parametrize("kind", OWN)
def test_functions_of_one_name_are_told_apart_by_what_they_give(kind, tmp_path):
    """Closures, lambdas and partials were known by their names, and members of different ones were joined as computed alike."""
    one, alike, other = _own(OWN[kind](2), 0), _own(OWN[kind](2), 1), _own(OWN[kind](5), 1)
    same = xr.concat([one, alike], "member")
    ms.summarize(same)
    ms.save_ensemble(same, tmp_path / "same.zarr")
    assert ms.load_ensemble(tmp_path / "same.zarr").attrs["values"] == "as computed"
    mixed = xr.concat([one, other], "member")
    for use in (ms.summarize, ms.plot_ensemble, lambda stats: ms.save_ensemble(stats, tmp_path / "mixed.zarr")):
        with pytest.raises(InvalidInputError, match="otherwise"):
            use(mixed)
    assert not (tmp_path / "mixed.zarr").exists()


FAR = 0.1
PAIRS = {}


def share_of_near_pairs(x):
    if len(x) not in PAIRS:
        PAIRS[len(x)] = np.triu_indices(len(x), 1)
    first, second = PAIRS[len(x)]
    return float((np.linalg.norm(x[first] - x[second], axis=1) < FAR).mean())


def test_globals_tell_functions_apart_but_what_these_fill_while_they_compute(monkeypatch):
    """Lengths that differ by a millionth give equal values; a table that is full in the second ensemble is no edit."""
    parts = [_own({"observe": {"n": share_of_near_pairs}}, seed) for seed in (0, 1, 2)]
    ms.summarize(xr.concat(parts, "member"))
    monkeypatch.setitem(globals(), "FAR", 0.1000001)
    with pytest.raises(InvalidInputError, match="otherwise"):
        ms.summarize(xr.concat([parts[0], _own({"observe": {"n": share_of_near_pairs}}, 3)], "member"))


def test_rare_branches_tell_functions_apart():
    """What differs in the order of its instructions only, and for no fixed input."""

    def one(x):
        return float(x[0, 0] - x[0, 1]) if abs(x[0, 0]) > 1 - 1e-12 else 0.0

    def other(x):
        return float(x[0, 1] - x[0, 0]) if abs(x[0, 0]) > 1 - 1e-12 else 0.0

    with pytest.raises(InvalidInputError, match="otherwise"):
        ms.summarize(xr.concat([_own({"observe": {"n": f}}, k) for k, f in enumerate((one, other))], "member"))


def test_observables_see_the_states_of_the_members_and_no_others():
    """They were also called with states that are made up: those that collect, or draw pictures, had these among theirs."""
    seen = []

    def collecting(x):
        seen.append(x)
        return float(x[0, 0])

    parts = [_own({"observe": {"n": collecting}}, seed) for seed in (0, 1)]
    np.testing.assert_array_equal(
        np.sort(np.concatenate([part.n.values.ravel() for part in parts])), np.sort([x[0, 0] for x in seen])
    )
    ms.summarize(xr.concat(parts, "member"))


class Counting:
    def __init__(self):
        self.calls, self.level = 0, 1.0

    def __call__(self, x):
        self.calls += 1
        return self.level * float(x[0, 0])


def test_what_functions_remember_tells_them_not_apart():
    counting = Counting()
    parts = [_own({"observe": {"n": counting}}, 0)]
    ms.simulate(ms.Attention(dim=3, beta=4.0), ms.sphere.uniform(5, dim=3, seed=0), times=[0.0, 1.0]).observe(counting)
    parts += [_own({"observe": {"n": counting}}, 1), _own({"observe": {"n": Counting()}}, 2)]
    counting.calls = -5
    parts += [_own({"observe": {"n": counting}}, 3)]
    ms.summarize(xr.concat(parts, "member"))
    counting.level = 2.0
    with pytest.raises(InvalidInputError, match="otherwise"):
        ms.summarize(xr.concat([parts[0], _own({"observe": {"n": counting}}, 4)], "member"))


# --------------------------------------------------------------------------------------------- what is there, and what not


def test_parts_along_time_agree_in_all_members_that_are_there():
    """Members that failed have one digest in all parts of earlier versions: one of them in common made one part of two."""
    nan = np.nan
    rows = np.array([[1.0, 5.0], [2.0, 5.0], [1.0, nan], [nan, 5.0], [2.0, 5.0], [nan, nan]])
    stats = xr.Dataset({membership.DIGEST: (("time", "member"), rows)})
    assert membership.parts_of_times(stats) == [[0, 2], [1, 4], [3], [5]]


def test_what_is_filled_with_zero_is_no_stranger():
    stats = made(times=(0.0, 1.0, 2.0))
    filled = ms.summarize(stats.where(stats.time > 0.5).fillna(0))
    assert filled.clusters_mean.values[0] == 0.0
    assert filled.clusters_mean.values[1] == stats.clusters.values[:, 1].mean()


def test_a_logarithmic_picture_of_time_zero_is_refused():
    with pytest.raises(InvalidInputError, match="log=True needs a time above 0"):
        ms.plot_ensemble(made().isel(time=[0]), log=True)

"""One cluster radius and one delta for the command line, the explorer, films, merge trees and sweeps; options from declarations."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

import metastable as ms
from metastable.analysis import center_separation, cluster_radius
from metastable.cli.app import build
from metastable.cli.variants import read_variant, variant_help
from metastable.errors import ModelError
from metastable.explorer.session import greeting
from metastable.explorer.setting import Setting
from metastable.model import declare
from metastable.sweep import points

BETAS = [0.0, 0.25, 1.0, 9.0, 64.0]


@pytest.mark.parametrize("beta", BETAS)
def test_one_radius_and_one_delta(beta):
    model = ms.Attention(dim=2, beta=beta)
    setting = Setting.from_dict({"model": {"dim": 2, "beta": beta}, "start": {"tokens": 5}})
    width = 1 / math.sqrt(max(1.0, beta))
    assert cluster_radius(model) == 0.5 * width == setting.cluster_radius
    assert center_separation(model) == min(math.pi, 4 * width) == setting.separation


def test_the_command_line_the_tree_and_the_observable_count_the_same_clusters():
    """The same run has the same clusters in the shell, in its tree and in an observable, and each says with which radius."""
    model = ms.Attention(dim=2, beta=64.0)
    start = ms.sphere.uniform(60, dim=2, seed=0)
    options = {"until": 20.0, "method": "tsit5", "engine": "reference"}
    run = ms.simulate(model, start, progress=False, **options)
    tree = ms.merge_tree(run)
    count = int(ms.cluster_labels(run.final, radius=0.0625).max()) + 1
    assert tree.radius == 0.0625
    assert len(np.unique(tree.final_labels)) == count
    seen = run.observe(ms.observe.clusters())
    assert int(seen[-1]) == count
    assert seen.attrs["observable"] == "Clusters(radius=0.0625)"
    words = ["simulate", "-n", "60", "-b", "64", "--until", "20", "--method", "tsit5", "--engine", "reference", "-q"]
    shown = CliRunner().invoke(build(words), words).output
    assert re.search(rf"clusters\s+{count} \(tokens linked closer than 0\.0625\)", shown)


def test_an_ensemble_says_which_lengths_it_used():
    observe = {"clusters": ms.observe.clusters(), "consumed": ms.observe.consumed()}
    model = ms.Attention(dim=2, beta=16.0)
    options = {"tokens": 12, "members": 3, "times": [1.0, 2.0], "seed": 0, "engine": "reference", "progress": False}
    stats = ms.ensemble(model, observe=observe, **options)
    said = json.loads(stats.attrs["observe"])
    assert said["clusters"] == "Clusters(radius=0.125)"
    assert said["consumed"] == "Consumed(delta=1.0, radius=0.1, strong=False, moving=True)"
    told = ms.ensemble(
        model, observe={"clusters": ms.observe.clusters(0.125), "consumed": ms.observe.consumed(1.0)}, **options
    )
    for name in observe:
        np.testing.assert_array_equal(stats[name].values, told[name].values)


def test_results_say_with_which_lengths_they_were_measured(tmp_path):
    """Runs and ensembles alike, as numbers; an ensemble had them in a text only, and where each member has a model not even there."""
    measures = {
        "clusters": ms.observe.clusters(),
        "near": ms.observe.consumed(radius=0.2),
        "c": ms.observe.mean_cosine(),
    }
    options = {"tokens": 5, "members": 3, "times": [0.0, 1.0], "seed": 0, "engine": "reference", "observe": measures}
    stats = ms.ensemble(ms.Attention(dim=2, beta=16.0), **options)
    run = ms.simulate(ms.Attention(dim=2, beta=16.0), ms.sphere.uniform(5, 2, 0), times=[0.0, 1.0], engine="reference")
    ms.save_ensemble(stats, tmp_path / "stats.zarr")
    for name, lengths in (("clusters", {"radius": 0.125}), ("near", {"delta": 1.0, "radius": 0.2}), ("c", {})):
        for found in (stats[name], run.observe(measures[name]), ms.load_ensemble(tmp_path / "stats.zarr")[name]):
            assert {key: found.attrs[key] for key in ("delta", "radius") if key in found.attrs} == lengths
            assert found.attrs["observable"] == run.observe(measures[name]).attrs["observable"]
    assert "clusters_radius" not in stats

    drawn = ms.ensemble(lambda generator: ms.Attention(dim=2, beta=float(generator.uniform(4, 25))), **options)
    beta = json.loads(drawn.attrs["model"])["first"]["beta"]
    assert float(drawn.clusters_radius[0]) == pytest.approx(0.5 * beta**-0.5, rel=1e-14)
    assert len(np.unique(drawn.clusters_radius)) == 3
    np.testing.assert_allclose(drawn.near_delta, 8 * drawn.clusters_radius, rtol=1e-15)
    assert "near_radius" not in drawn  # one for all
    assert drawn.near.attrs["radius"] == 0.2
    assert "radius" not in drawn.clusters.attrs
    xr.Dataset({"one": stats.clusters, "drawn": drawn.clusters})  # nothing goes along that would not fit together


def test_no_result_hides_a_length_that_each_model_sets():
    """`clusters_radius` took the name, and nothing said with which radius clusters were counted."""
    options = {"tokens": 5, "members": 2, "times": [1.0], "seed": 0, "engine": "reference"}

    def drawn(generator):
        return ms.Attention(dim=2, beta=float(generator.uniform(4, 25)))

    def height(x):
        return x[:, 0]

    counted = {"clusters": ms.observe.clusters(), "clusters_radius": ms.observe.mean_cosine()}
    with pytest.raises(ms.errors.InvalidInputError, match="clusters_radius"):
        ms.ensemble(drawn, observe=counted, **options)
    along = {"near": ms.observe.consumed(), "height": ms.observe.own(height, dims=("near_delta",))}
    with pytest.raises(ms.errors.ObservableError, match="near_delta"):
        ms.ensemble(drawn, observe=along, **options)
    told = {**counted, "clusters": ms.observe.clusters(0.1)}
    assert ms.ensemble(drawn, observe=told, **options).clusters_radius.dims == ("member", "time")
    assert ms.ensemble(ms.Attention(dim=2, beta=9.0), observe=counted, **options).clusters.attrs["radius"] == 0.5 / 3


def test_a_sweep_needs_no_radius():
    table = {"model": {"dim": 2}, "grid": {"beta": [4.0, 16.0]}, "tokens": 6, "members": 1, "run": {"times": [1.0]}}
    sweep = ms.Sweep.from_dict({**table, "observe": {"clusters": {}, "consumed": {}}})
    sweep.check()


def test_flags_are_built_from_the_declarations():
    assert variant_help("norm") == "post_ln, pre_ln, mix_ln:TAU, peri_ln, ngpt:ALPHA, sqrt_scaling."
    assert variant_help("mask", "Who: ") == "Who: causal, full, window:WIDTH, sink:SINKS,WIDTH, prefix:LENGTH."
    assert read_variant("mask", "sink:1,16") == {"kind": "sink", "sinks": 1, "width": 16}
    assert read_variant("bias", "alibi:0.5") == {"kind": "alibi", "slope": 0.5}
    assert read_variant("norm", "PreLN") == read_variant("norm", "pre-ln") == {"kind": "pre_ln"}
    assert read_variant("norm", "NGPT:0.5") == {"kind": "ngpt", "alpha": 0.5}
    model = ms.Attention.from_dict({"dim": 2, "beta": 1.0, "bias": read_variant("bias", "alibi:0.5")})
    assert model.bias == ms.ALiBi(0.5)
    for family, text, word in (
        ("norm", "ngpt", "ngpt:ALPHA"),
        ("norm", "ngpt:x", "numbers"),
        ("mask", "matrix", "unknown kind"),
        ("weights", "linear", "softmax, unnormalized, hardmax"),
    ):
        with pytest.raises(ModelError, match=word):
            read_variant(family, text)


def test_the_page_gets_the_declarations():
    """Every kind that a form can make, made from its suggestions, is a model."""
    variants = json.loads(json.dumps(greeting()["variants"]))
    assert [item["kind"] for item in variants["weights"]] == ["softmax", "unnormalized", "hardmax"]
    assert [item["kind"] for item in variants["mask"] if item["fields"] is None] == ["matrix"]
    for family in ("mask", "norm", "weights", "bias"):
        for item in variants[family]:
            if item["fields"] is not None:
                table = {"kind": item["kind"], **{field["name"]: field["suggestion"] for field in item["fields"]}}
                model = ms.Attention.from_dict({"dim": 2, "beta": 1.0, family: table})
                assert ms.Attention.from_dict(model.to_dict()) == model
    # What is first is the default: the page says nothing about it.
    assert [variants[family][0]["kind"] for family in ("mask", "norm", "weights")] == ["causal", "post_ln", "softmax"]


def test_sweeps_know_the_numbers_and_names_of_a_model():
    assert points.NUMERIC_FIELDS == ("dim", "beta", "noise", "tie_tolerance")
    assert set(declare.REGISTRY) == {"mask", "norm", "weights", "bias"}
    table = {"model": {"dim": 2, "beta": 4.0}, "tokens": 6, "members": 1, "run": {"times": [1.0]}}
    grid = {"mask": [ms.Causal(), ms.Window(3)], "norm": [ms.PostLN(), ms.NGPT(0.5)]}
    sweep = ms.Sweep.from_dict({**table, "grid": grid, "observe": {"mean_cosine": {}}})
    assert [axis.labels for axis in sweep.axes] == [("causal", "window(3)"), ("post_ln", "ngpt(0.5)")]
    sweep.check()

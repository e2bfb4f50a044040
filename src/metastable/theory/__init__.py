"""Closed formulas of the theory, each with its reference, trusted as oracles by the tests.

The statements are those of N. Karagodin, Y. Polyanskiy, P. Rigollet, *Clustering in Causal Attention Masking*, NeurIPS
2024, arXiv:2411.04990 ("the paper" below), unless a docstring names another source. Nothing here simulates: of our own
modules only `sphere` is used, so an agreement between `theory` and a run is an agreement of two independent computations.

- one token: `single_token`, `spectral_gap`, `jordan_decay`
- two tokens: `pair_collapse_time`, `log_pair_collapse_time`, `pair_elasticities` -> `PairElasticities`
- the force between tokens: `interaction`, `interaction_peak`
- equiangular tokens: `equiangular_rate`, `equiangular_flow`
- centers: `strong_centers`, `strong_centers_from_measure`, `strong_centers_from_samples`, `renyi_centers_limit`,
  `parking_constant`, `center_exponent`, `cap_measure`
- how long strong centers stand still: `strong_center_displacement`, `strong_center_time`,
  `strong_center_sufficient_time`
- the cluster-count law (empirical): `cluster_count`, `cluster_reach`
- the width of clouds of repelling tokens (mean field, ours): `cloud_width` -> `CloudWidth`, `cloud_covariance`
- random weights: `initial_inverse_temperature`
"""

from metastable.sphere import cap_measure
from metastable.theory.centers import (
    center_exponent,
    parking_constant,
    renyi_centers_limit,
    strong_centers,
    strong_centers_from_measure,
    strong_centers_from_samples,
)
from metastable.theory.clouds import CloudWidth, cloud_covariance, cloud_width
from metastable.theory.clustering import cluster_count, cluster_reach
from metastable.theory.equiangular import equiangular_flow, equiangular_rate
from metastable.theory.interaction import initial_inverse_temperature, interaction, interaction_peak
from metastable.theory.metastability import (
    strong_center_displacement,
    strong_center_sufficient_time,
    strong_center_time,
)
from metastable.theory.pair import PairElasticities, log_pair_collapse_time, pair_collapse_time, pair_elasticities
from metastable.theory.single import jordan_decay, single_token, spectral_gap

__all__ = [
    "CloudWidth",
    "PairElasticities",
    "cap_measure",
    "center_exponent",
    "cloud_covariance",
    "cloud_width",
    "cluster_count",
    "cluster_reach",
    "equiangular_flow",
    "equiangular_rate",
    "initial_inverse_temperature",
    "interaction",
    "interaction_peak",
    "jordan_decay",
    "log_pair_collapse_time",
    "pair_collapse_time",
    "pair_elasticities",
    "parking_constant",
    "renyi_centers_limit",
    "single_token",
    "spectral_gap",
    "strong_center_displacement",
    "strong_center_sufficient_time",
    "strong_center_time",
    "strong_centers",
    "strong_centers_from_measure",
    "strong_centers_from_samples",
]

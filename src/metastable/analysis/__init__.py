"""What the theory talks about, measured: clusters, Renyi centers, capture, merge tree, energies, the atlas.

Functions of arrays and of runs (anything with the attributes of `Trajectory`); names are those of arXiv:2411.04990.

- centers: `renyi_centers`, `consumed`
- clusters: `cluster_labels`, `cluster_count`, `cluster_sizes`, `cluster_leaders`, `cluster_means`, `cluster_spread`
- merges: `merge_tree` of a run, `predict_merges` from the clusters at one moment -> `MergeTree`
- lengths that a model sets by default: `cluster_radius`, `center_separation`
- energies: `token_energies`, `energy_gradients`, `gradient_flow_defect`, `global_energy`, `attention_energy`
- atlas: `predict`, `predict_value` -> `Prediction`; `classify` -> `Classification`, made of `features`, `group`, `match`;
  `leading_eigenvalue` -> `LeadingEigenvalue`
- observables for runs and ensembles: `observe`
"""

from metastable.analysis import observe
from metastable.analysis.atlas import (
    ROWS,
    Classification,
    Features,
    Groups,
    Prediction,
    classify,
    features,
    group,
    match,
    predict,
    predict_value,
)
from metastable.analysis.cascade import predict_merges
from metastable.analysis.centers import consumed, renyi_centers
from metastable.analysis.clusters import (
    cluster_count,
    cluster_labels,
    cluster_leaders,
    cluster_means,
    cluster_sizes,
    cluster_spread,
)
from metastable.analysis.energy import (
    attention_energy,
    energy_gradients,
    global_energy,
    gradient_flow_defect,
    token_energies,
)
from metastable.analysis.merging import MergeTree, merge_tree
from metastable.analysis.scales import center_separation, cluster_radius
from metastable.analysis.spectrum import LeadingEigenvalue, leading_eigenvalue
from metastable.analysis.trajectory import Trajectory

__all__ = [
    "ROWS",
    "Classification",
    "Features",
    "Groups",
    "LeadingEigenvalue",
    "MergeTree",
    "Prediction",
    "Trajectory",
    "attention_energy",
    "center_separation",
    "classify",
    "cluster_count",
    "cluster_labels",
    "cluster_leaders",
    "cluster_means",
    "cluster_radius",
    "cluster_sizes",
    "cluster_spread",
    "consumed",
    "energy_gradients",
    "features",
    "global_energy",
    "gradient_flow_defect",
    "group",
    "leading_eigenvalue",
    "match",
    "merge_tree",
    "observe",
    "predict",
    "predict_merges",
    "predict_value",
    "renyi_centers",
    "token_energies",
]

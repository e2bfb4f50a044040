"""The layers of SmolLM2 and MiniLM as flows: equality with the forward pass, and the findings recorded in the documentation."""

from __future__ import annotations

import numpy as np
import pytest

import metastable as ms
from metastable import checkpoints


@pytest.fixture(scope="module")
def flow(smollm2):
    return checkpoints.flow(smollm2)


def test_smollm2_is_its_forward_pass(flow) -> None:
    import torch

    run = flow.run(checkpoints.sample_text(), max_tokens=128)
    with torch.no_grad():
        truth = flow.model.model(torch.tensor([run.dataset["id"].values.tolist()]), output_hidden_states=True)
        last = flow.final_norm(torch.tensor(run.hidden[-1:]))
    for layer in range(30):
        assert (run.hidden[layer] == truth.hidden_states[layer][0].numpy()).all()
    assert torch.equal(last, truth.last_hidden_state)
    assert run.text[1:4] == (" harbour", " was", " quiet")
    cloud = run.drop_first()
    assert cloud.observe(ms.observe.mean_cosine()).values[-1] == pytest.approx(0.544, abs=1e-3)
    assert ms.cluster_labels(cloud.final, radius=0.3).max() + 1 == 124


def test_attention_alone_collapses(flow) -> None:
    run = flow.run(checkpoints.sample_text(), max_tokens=128, parts="attention").drop_first()
    assert run.observe(ms.observe.mean_cosine()).values[-1] == pytest.approx(0.993, abs=1e-3)
    assert ms.cluster_labels(run.final, radius=0.3).max() == 0


def test_a_looped_layer_merges_slowly(flow) -> None:
    """Layer 10, attention only, Euler steps of 0.1: 19, 4 and 2 clusters at t = 30, 100, 200."""
    run = flow.run(
        checkpoints.sample_text(),
        max_tokens=128,
        parts="attention",
        layer=10,
        until=200.0,
        step=0.1,
        times=[30.0, 100.0, 200.0],
    ).drop_first()
    assert run.observe(ms.observe.clusters(0.3)).values.tolist() == [19, 4, 2]
    # Every evaluation of the field is one call of the layer, so the cost is that of its bare calls.
    assert run.stats.evaluations == 2000
    adaptive = flow.run(
        checkpoints.sample_text(), max_tokens=128, parts="attention", layer=10, until=30.0, times=[30.0], rtol=1e-4
    ).drop_first()
    assert abs(int(adaptive.observe(ms.observe.clusters(0.3)).values[0]) - 19) <= 2
    assert adaptive.stats.evaluations < 300


def test_minilm_is_its_forward_pass() -> None:
    import torch

    flow = checkpoints.flow("minilm")
    run = flow.run("The tokens of a short text move through six layers.")
    with torch.no_grad():
        ids = torch.tensor([run.dataset["id"].values.tolist()])
        truth = flow.model(ids, output_hidden_states=True).hidden_states
    assert np.array_equal(run.hidden, np.stack([state[0].numpy() for state in truth]))
    assert (flow.kind, flow.causal, run.text[0]) == ("post", False, "[CLS]")

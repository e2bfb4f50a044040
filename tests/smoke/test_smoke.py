"""Every room once, in about a minute: does metastable work at all with these versions of its dependencies?

Run by `make test-lowest` with the lowest versions that pyproject.toml promises, and without PyTorch. What the numbers are is tested
elsewhere; here they only have to agree with the reference engine, so that a version that computes nonsense is noticed.
"""

import importlib
import json
import pkgutil
import sys
from pathlib import Path

import numpy as np
import pytest

import metastable as ms
from metastable import checkpoints, errors
from metastable import sweep as sweeps

NEEDS_GPU = ("metastable.kernels.cuda", "metastable.integrate.fused.cuda")
OPTIONAL = {"torch", "transformers", "huggingface_hub", "numba_cuda", "cuda", "gguf", "safetensors"}


def modules() -> list[str]:
    found = [item.name for item in pkgutil.walk_packages(ms.__path__, "metastable.")]
    return [name for name in found if not name.startswith(NEEDS_GPU) and not name.endswith("__main__")]


def test_every_module_imports():
    """Optional packages may be missing when a function of a module is called, never when it is imported."""
    assert len(modules()) > 100
    for name in modules():
        try:
            importlib.import_module(name)
        except ImportError as reason:
            if (reason.name or "").split(".")[0] not in OPTIONAL:
                raise


@pytest.mark.parametrize(("dim", "until"), [(2, 2.0), (3, 2.0), (2, 1e8)])
def test_runs_agree_with_the_reference(dim, until):
    """Compiled, in two dimensions and in three, and over a long horizon (implicit)."""
    model, start = ms.Attention(dim=dim, beta=4.0), ms.sphere.uniform(12, dim=dim, seed=0)
    run = ms.simulate(model, start, until=until, rtol=1e-9)
    assert run.status == "success"
    near = ms.simulate(model, start, times=[1.0], engine="reference", rtol=1e-9)
    np.testing.assert_allclose(run.at(1.0), near.final, rtol=0, atol=1e-6)
    if until > 1e6:
        assert "rodas" in run.method
        assert np.abs(run.final @ start[0] - 1).max() < 1e-9  # Theorem 4.1


def test_noise_layers_and_other_norms():
    start = ms.sphere.uniform(6, dim=3, seed=0)
    noisy = ms.simulate(ms.Attention(dim=3, beta=1.0, noise=0.1), start, until=0.1, seed=0, engine="reference")
    layers = ms.simulate(ms.Attention(dim=3, beta=1.0), start, until=1.0, method="layers", step=0.1)
    radial = ms.simulate(ms.Attention(dim=3, beta=1.0, norm=ms.PreLN()), start, until=1.0, engine="reference")
    for run in (noisy, layers, radial):
        np.testing.assert_allclose(np.linalg.norm(run.final, axis=1), 1.0, atol=1e-12)


def test_save_and_load(tmp_path):
    run = ms.simulate(ms.Attention(dim=2, beta=4.0), ms.sphere.uniform(5, dim=2, seed=0), until=1.0, engine="reference")
    for _ in range(2):
        run.save(tmp_path / "run.zarr", overwrite=True)
    back = ms.load(tmp_path / "run.zarr")
    np.testing.assert_array_equal(back.at(0.3), run.at(0.3))
    assert [item.name for item in tmp_path.iterdir()] == ["run.zarr"]
    path = tmp_path / "run.zarr" / "zarr.json"
    path.write_text(path.read_text().replace('"success"', '"diverged"'))
    with pytest.raises(errors.StoreError, match="status"):
        ms.load(tmp_path / "run.zarr")


def test_analysis():
    model, start = ms.Attention(dim=2, beta=16.0), ms.sphere.uniform(20, dim=2, seed=0)
    run = ms.simulate(model, start, until=20.0, engine="reference")
    assert ms.predict(model).row == 1
    assert set(ms.renyi_centers(start, 0.5, strong=True)) <= set(ms.renyi_centers(start, 0.5))
    assert 1 <= len(set(ms.cluster_labels(run.final, radius=0.1))) <= 20
    ms.merge_tree(run)


def test_ensembles():
    found = ms.ensemble(
        ms.Attention(dim=2, beta=4.0),
        tokens=8,
        members=6,
        times=[1.0, 2.0],
        seed=0,
        observe={"clusters": ms.observe.clusters(radius=0.1), "cosine": ms.observe.mean_cosine()},
    )
    assert found["cosine"].shape == (6, 2)
    assert (found["status"] == "success").all()


SWEEP = """
members = 2
tokens = 4
[model]
dim = 2
[grid]
beta = [1.0, 2.0, 3.0]
[observe.mean_cosine]
[run]
times = [0.5, 1.0]
engine = "reference"
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_sweeps(tmp_path, workers):
    sweep = sweeps.Sweep.from_toml(SWEEP)
    sweep.check()
    outcome = sweep.run(tmp_path / "sweep", workers=workers)
    assert outcome.complete
    assert sweeps.status(tmp_path / "sweep").process is None
    assert np.isfinite(outcome.dataset["mean_cosine"].values).all()
    assert sweep.run(tmp_path / "sweep", workers=0).ran == 0


def test_figures(tmp_path):
    run = ms.simulate(ms.Attention(dim=2, beta=4.0), ms.sphere.uniform(5, dim=2, seed=0), until=1.0, engine="reference")
    figure = run.plot()
    figure.savefig(tmp_path / "run.png")
    run.animate(tmp_path / "run.gif", seconds=0.2, frames_per_second=10)
    assert (tmp_path / "run.png").stat().st_size > 1000
    assert (tmp_path / "run.gif").stat().st_size > 1000


def test_command_line(tmp_path, capsys, monkeypatch):
    from metastable.cli import main

    command = "simulate -n 6 -b 4 --until 2 --engine reference -o run.zarr"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["metastable", *command.split()])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    assert ms.load("run.zarr").end == 2.0


def test_explorer_answers():
    from fastapi.testclient import TestClient

    from metastable.explorer import server

    with TestClient(server.create_app("127.0.0.1", 8765), base_url="http://127.0.0.1:8765") as client:
        page = client.get("/")
    assert page.status_code == 200
    assert "<html" in page.text


def tiny_llama(folder: Path) -> Path:
    """A tiny Llama of random numbers, with safetensors."""
    from metastable.checkpoints.tensors import write_safetensors

    shapes = {f"layers.0.self_attn.{part}_proj.weight": (8, 8) for part in "qkvo"} | {
        "layers.0.input_layernorm.weight": (8,)
    }
    generator = np.random.default_rng(0)
    write_safetensors(folder / "model.safetensors", shapes, lambda name: generator.normal(size=shapes[name]))
    config = {"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_checkpoints(tmp_path):
    weights = checkpoints.load_weights(tiny_llama(tmp_path))
    spectra = checkpoints.ov_spectra(weights)
    # The four eigenvalues that are not of the kernel, found the slow way.
    slow = np.linalg.eigvals(weights.layer(0).fold().value_matrix(1))
    slow = slow[np.argsort(-np.abs(slow))[:4]]
    np.testing.assert_allclose(spectra["leading"].values[0, 1].real, slow.real.max(), rtol=1e-6)
    assert spectra["eigenvalue"].shape == (1, 2, 4)
    assert checkpoints.inverse_temperature(weights)["beta_F"].shape == (1, 2, 1)


def test_gguf(tmp_path):
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(8)
    writer.add_feed_forward_length(8)
    writer.add_head_count(2)
    writer.add_context_length(32)
    writer.add_layer_norm_rms_eps(1e-5)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        writer.add_tensor(f"blk.0.{name}.weight", np.eye(8, dtype=np.float32))
    writer.add_tensor("blk.0.attn_norm.weight", np.ones(8, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    weights = checkpoints.load_weights(tmp_path / "a.gguf")
    np.testing.assert_array_equal(weights.layer(0).value[0], np.eye(8)[:4])
    (tmp_path / "b.gguf").write_bytes((tmp_path / "a.gguf").read_bytes()[:300])
    with pytest.raises(errors.CheckpointError):
        checkpoints.load_weights(tmp_path / "b.gguf")

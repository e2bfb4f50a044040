"""What `metastable geometry` measures, and its report page."""

from __future__ import annotations

import base64
import html
import io
import math
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import __version__, checkpoints, stores
from metastable._checks import choice, count, number, seed
from metastable.checkpoints.states import CENTERS
from metastable.checkpoints.weights import AttentionWeights
from metastable.errors import StoreError
from metastable.reports import tokens

if TYPE_CHECKING:
    import xarray as xr

SIGNIFICANT = 0.01
"""p-value below which a layer is counted in the report."""
SCALE = 4.0
"""c in delta = c beta^(-1/2), as in the paper's figures."""


@dataclass(frozen=True)
class Choices:
    """Everything that was chosen, so that the report can say it."""

    max_tokens: int
    drop_first: int
    drop_dims: int
    center: str
    delta: float | None
    permutations: int
    seed: int


@dataclass(frozen=True)
class Measurement:
    """All results on one text.

    `sink`: norm of token 0 over the median norm, by layer; `outliers`: share of the three largest dimensions in the energy.
    """

    weights: AttentionWeights
    choices: Choices
    geometry: xr.Dataset
    test: xr.Dataset
    capture: xr.Dataset
    temperatures: xr.Dataset
    sink: np.ndarray
    outliers: np.ndarray


def measure(source: str, text: str, choices: Choices, revision: str | None = None) -> Measurement:
    """Runs the model on the text and measures its token cloud."""
    tokens.check_options(choices.max_tokens, choices.drop_first)
    count(choices.drop_dims, "--drop-dims", 0)
    count(choices.permutations, "--permutations", 2)
    seed(choices.seed, "--seed")
    choice(choices.center, "--center", CENTERS)
    if choices.delta is not None:
        number(choices.delta, "--delta", 0.0, math.pi, strict=True)
    weights = checkpoints.load_weights(source, revision=revision)
    model, tokenizer = checkpoints.load_model(source, revision=revision)
    tokens.check_text(source, model, tokenizer, text, choices.max_tokens, choices.drop_first)
    states = checkpoints.token_states(model, tokenizer, text, max_tokens=choices.max_tokens)
    cloud = checkpoints.to_sphere(
        states, drop_first=choices.drop_first, drop_dims=choices.drop_dims, center=choices.center
    )
    temperatures = checkpoints.inverse_temperature(weights, states)
    delta = choices.delta
    if delta is None:
        delta = min(SCALE / math.sqrt(float(temperatures["beta_data"].median())), math.pi / 2)
    norms = states["norm"].values
    shares = np.sort(checkpoints.energy_shares(states["x"].values[:, choices.drop_first :]), axis=-1)
    return Measurement(
        weights=weights,
        choices=choices,
        geometry=checkpoints.token_geometry(cloud),
        test=checkpoints.exchangeability_test(cloud, permutations=choices.permutations, seed=choices.seed),
        capture=checkpoints.capture_curves(cloud, delta, radius=delta / 2, seed=choices.seed),
        temperatures=temperatures,
        sink=norms[:, 0] / np.median(norms, axis=1),
        outliers=shares[:, -3:].sum(axis=-1),
    )


def write(out: Path, result: Measurement, source: str, text_name: str) -> list[Path]:
    """report.html (self-contained), geometry.png and geometry.csv."""
    from metastable.figures import spectra as pictures
    from metastable.figures import style

    middle = int(result.geometry["layer"].values[len(result.geometry["layer"]) // 2])
    page = pictures.geometry_page(result.geometry, result.test, result.capture, result.temperatures, layer=middle)
    buffer = io.BytesIO()
    page.savefig(buffer, format="png", dpi=170)
    table = _frame(result)
    try:
        out.mkdir(parents=True, exist_ok=True)
        picture = style.save(page, out / "geometry")
        stores.write_file(out / "geometry.csv", table.to_csv().encode())
        report = out / "report.html"
        stores.write_file(report, _page(result, table, source, text_name, buffer.getvalue()).encode())
    except OSError as reason:
        raise StoreError(f"cannot write to {out}: {reason}; choose another folder") from reason
    return [report, *picture, out / "geometry.csv"]


def _frame(result: Measurement) -> Any:
    """One row per layer, as a pandas table."""
    names = ["mean_cosine", "mean_cosine_centered", "effective_rank", "nearest"]
    frame = result.geometry[names].to_dataframe()
    frame["sink_norm"], frame["outlier_energy"] = result.sink, result.outliers
    frame[["strong_z", "strong_p", "strong_effect"]] = result.test[["z", "p", "effect"]].to_dataframe()
    captured = result.capture[["consumed", "null_mean"]].to_dataframe()
    frame[["captured", "captured_by_chance"]] = captured
    heat = result.temperatures.isel(lag=0).median("head").drop_vars("lag").to_dataframe()
    for name in ("beta_F", "beta_data", "slope", "r_squared", "sink_mass", "attention_perplexity"):
        frame[name] = heat[name].reindex(frame.index)
    return frame


def _page(result: Measurement, table: Any, source: str, text_name: str, picture: bytes) -> str:
    """The report as HTML."""
    css = files("metastable.reproduce").joinpath("report.css").read_text(encoding="utf-8")
    image = base64.b64encode(picture).decode()
    capture = result.capture.attrs
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(str(value))}</td></tr>"
        for name, value in asdict(result.choices).items()
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Token geometry of {html.escape(source)}</title><style>{css}</style></head><body><main>
<h1>Token geometry of {html.escape(source)}</h1>
<p class="lead">{result.weights.architecture}, {result.weights.layer_count} layers, dim {result.weights.dim}; text:
{html.escape(text_name)}, {result.geometry.attrs["tokens"]} tokens kept. metastable {__version__}.</p>
<section><figure><img alt="six panels on the token cloud" src="data:image/png;base64,{image}"></figure>
<p><b>a</b> mean cosine between tokens; <b>b</b> effective rank (exp of the entropy of singular values); <b>c</b> centers
against delta; <b>d</b> strong centers against random orders of the same tokens; <b>e</b> tokens within
{capture["radius"]:.2f} of one of the {result.capture.sizes["center"]} Rényi centers of the first layer
(delta = {capture["delta"]:.2f}), grey: as many random tokens; <b>f</b> inverse temperature, median and 0.1 to 0.9 quantiles
over heads.</p></section>
<section><h2>How to read it</h2><p>{_reading(result)}</p></section>
<section><h2>By layer</h2><div class="scroll">{table.round(3).to_html(border=0, na_rep="")}</div></section>
<section><h2>Choices</h2><div class="scroll"><table>{rows}</table></div></section>
</main></body></html>
"""


def _reading(result: Measurement) -> str:
    """A paragraph that says what the numbers mean and what they do not."""
    test, heat = result.test, result.temperatures
    dropped = ", ".join(str(i) for i in result.geometry.attrs["drop_dims"]) or "none"
    significant = int((test["p"].values <= SIGNIFICANT).sum())
    sentences = (
        f"The first token is {result.sink.max():.0f} times as long as the median one at layer {int(result.sink.argmax())}.",
        f"Three dimensions carry up to {100 * result.outliers.max():.0f} % of the energy: compare cosines with and without them",
        f"(--drop-dims 3) before calling tokens clustered. Dimensions left out here: {dropped}.",
        f"The order of the text matters for the strong centers (p &le; {SIGNIFICANT}, not corrected for testing every layer)",
        f"in {significant} of {test.sizes['layer']} layers, by at most {100 * float(abs(test['effect']).max()):.1f} %.",
        f"The median head has beta_F {float(heat['beta_F'].isel(lag=0).median()):.0f} and beta_data",
        f"{float(heat['beta_data'].median()):.0f}; cosines explain {100 * float(heat['r_squared'].median()):.0f} % of the",
        "variance of its logits. One text is one draw: repeat with others.",
    )
    return " ".join(sentences)

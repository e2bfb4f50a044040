"""The engine in the browser against Python: starts, positions, clusters, centers, curves, verdicts and files."""

from __future__ import annotations

import base64
import io
import json
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import BrowserContext, Page

import metastable as ms
from metastable.explorer import exports, job, protocol
from metastable.explorer.export_frames import _unpacked
from metastable.explorer.python_code import python_code
from metastable.explorer.session import beginning
from metastable.explorer.setting import Clock, Setting
from tests.unit.explorer.serving import Server

CLOCK = {"until": 20.0, "log": False}
SETTINGS = 30
NEAR = 1e-6
"""Positions of the browser's engine, which travel in single precision, are this near to those of the package."""

Draw = np.random.Generator


@pytest.fixture
def engine(context: BrowserContext, server: Server) -> Iterator[Page]:
    """A page of our server, from which the modules of the engine can be imported."""
    page = context.new_page()
    page.goto(server.address + "static/favicon.svg")
    yield page
    page.close()


RUN = """async (orders) => {
  const worker = new Worker("/static/engine/worker.js", { type: "module" }), results = [];
  for (const order of orders) {
    const found = { frames: [] };
    results.push(found);
    await new Promise((resolve) => {
      worker.onmessage = ({ data }) => {
        if (data instanceof ArrayBuffer) {
          let text = "";
          for (const byte of new Uint8Array(data)) text += String.fromCharCode(byte);
          found.frames.push(btoa(text));
          if (order.type === "attention") resolve();
        } else {
          found[data.type] = data;
          if (["end", "error", "reply"].includes(data.type)) resolve();
        }
      };
      worker.postMessage(order);
    });
  }
  worker.terminate();
  return results;
}"""


def compute(page: Page, settings: list[dict[str, Any]], clock: dict[str, Any] = CLOCK) -> list[dict[str, Any]]:
    """What the worker says about the runs of settings."""
    orders = [{"type": "simulate", "panel": 0, "run": 1, "setting": item, "clock": clock} for item in settings]
    return page.evaluate(RUN, orders)


def arrays(messages: list[bytes], kind: int, part: int = 0) -> np.ndarray:
    """The frames of a run from its messages."""
    found: dict[int, np.ndarray] = {}
    for message in messages:
        if message[2] == kind:
            _, first, parts = _unpacked(message)
            found[first] = parts[part]
    at, rows = 0, []
    while at in found:
        rows.append(found[at])
        at += len(found[at])
    return np.concatenate(rows)


def in_python(setting: dict[str, Any], clock: dict[str, Any] = CLOCK) -> tuple[dict[str, Any], list[bytes]]:
    """The same from the package: messages by type, and frames."""
    order = {"kind": "simulate", "panel": 0, "run": 1, "setting": setting, "clock": clock}
    told: dict[str, Any] = {"begin": beginning(Setting.from_dict(setting), Clock.from_dict(clock))}
    frames = []
    for message in job.perform(order):
        if isinstance(message, bytes):
            frames.append(message)
        else:
            told[message["type"]] = message
    return told, frames


def pick(draw: Draw, entries: list[Any]) -> Any:
    return entries[int(draw.integers(len(entries)))]


def random_matrix(draw: Draw, dim: int) -> Any:
    """A matrix as the form makes them."""
    kind = int(draw.integers(4))
    if kind == 0:
        return None
    if kind == 1:
        return {"gaussian": int(draw.integers(2**32))}
    if kind == 2:
        return {"eigenvalues": [[float(value), 0.0] for value in draw.integers(-2, 3, dim)]}
    return np.round(draw.uniform(-1, 1, (dim, dim)), 3).tolist()


def random_start(draw: Draw, dim: int) -> dict[str, Any]:
    tokens = int(draw.integers(5, 61))
    kinds: list[dict[str, Any]] = [
        {},
        {},
        {"kind": "von_mises_fisher", "concentration": 4.0},
        {"kind": "mixture", "centers": 4, "concentration": 30.0},
        {"kind": "correlated", "correlation": 0.4},
        {"kind": "chain", "correlation": 0.9},
        *([{"kind": "equally_spaced"}] if dim < 4 else []),
    ]
    start = {"tokens": tokens, "seed": int(draw.integers(2**32)), **pick(draw, kinds)}
    if draw.random() < 0.3:
        start |= {"placed": [[2, [1.0, *[0.5] * (dim - 1)]]], "appended": [[-1.0, *[0.25] * (dim - 1)]], "removed": [1]}
    return start


def random_setting(draw: Draw) -> dict[str, Any]:
    """Any setting that the form can make, but for hardmax weights, whose jumps no two programs take alike."""
    dim = pick(draw, [2, 2, 2, 3, 3, 4, 6, 9])
    weights = pick(draw, ["softmax"] * 4 + ["unnormalized"])
    most = 3.0 if weights == "unnormalized" else 64.0
    model: dict[str, Any] = {"dim": dim, "beta": float(np.round(np.exp(draw.uniform(0, np.log(most))), 3))}
    if weights != "softmax":
        model["weights"] = weights
    masks = [None, None, {"kind": "full"}, {"kind": "window", "width": 6}, {"kind": "sink", "sinks": 2, "width": 5}]
    mask = pick(draw, [*masks, {"kind": "prefix", "length": 9}, {"kind": "full", "include_self": False}])
    norms = [None, None, {"kind": "pre_ln"}, {"kind": "peri_ln"}, {"kind": "mix_ln", "tau": 4.0}]
    norm = pick(draw, [*norms, {"kind": "ngpt", "alpha": 0.7}, {"kind": "sqrt_scaling"}])
    model |= {name: table for name, table in (("mask", mask), ("norm", norm)) if table is not None}
    if draw.random() < 0.5 and weights == "softmax":
        matrices = {name: random_matrix(draw, dim) for name in ("query", "key", "value")}
        if norm is not None and norm["kind"] in ("pre_ln", "peri_ln", "mix_ln"):
            matrices["value"] = None  # with another V a radius may shrink to zero, where a run ends
        model |= {name: matrix for name, matrix in matrices.items() if matrix is not None}
    if draw.random() < 0.15 and dim <= 3:
        model["frozen"] = {"tokens": ms.sphere.uniform(3, dim=dim, seed=5).tolist(), "weights": [4.0, 1.0, 2.0]}
    if draw.random() < 0.15 and dim <= 4 and weights == "softmax":
        model["noise"] = 0.1
    # Axes of the leading space have no sign of their own: those that have are compared.
    view = {} if dim <= 3 else {"projection": pick(draw, ["coordinates", "principal"])}
    return {"model": model, "start": random_start(draw, dim), **view}


def settings() -> list[dict[str, Any]]:
    draw = np.random.default_rng(21)
    heads = {"dim": 3, "heads": [{"beta": 4.0}, {"beta": 9.0, "value": [[0, 1, 0], [0, 0, 1], [1, 0, 0]]}]}
    return [random_setting(draw) for _ in range(SETTINGS)] + [{"model": heads, "start": {"tokens": 30, "seed": 2}}]


def test_seeds_give_the_starts_of_python(engine: Page) -> None:
    draw = np.random.default_rng(8)
    cases = [
        {"model": {"dim": dim, "beta": 1.0}, "start": {"tokens": 8000 // dim if dim > 3 else 2000, "seed": seed}}
        for dim, seed in zip((2, 3, 4, 7, 8, 9, 16, 31, 32), (0, 2**32 - 1, *draw.integers(2**32, size=7).tolist()))
    ]
    others = [{"model": {"dim": dim, "beta": 1.0}, "start": random_start(draw, dim)} for dim in (2, 3, 3, 5, 8) * 4]
    script = """async (cases) => {
      const { Setting } = await import("/static/engine/setting.js");
      return cases.map((item) => Array.from(new Setting(item).start.x));
    }"""
    for number, (case, found) in enumerate(zip(cases + others, engine.evaluate(script, cases + others))):
        wanted = Setting.from_dict(case).positions.ravel()
        unequal = np.flatnonzero(np.array(found) != wanted)
        # Uniform tokens bit for bit, but for the tail beyond 3.65, whose logarithm may differ by one unit in its last place; the
        # other distributions take more of logarithms, powers and products.
        assert np.abs(np.array(found) - wanted).max() <= (1.2e-16 if number < len(cases) else 5e-16), case
        assert number >= len(cases) or unequal.size <= 0.002 * wanted.size + 2, case


def test_the_table_behind_normal_numbers_is_that_of_numpy(engine: Page) -> None:
    widths = engine.evaluate('async () => Array.from((await import("/static/engine/ziggurat.js")).WIDTHS)')
    multiplier, whole = 0x2360ED051FC65DA44385DF649FCCF645, 1 << 128

    def draw(word: int) -> float:
        """A standard normal number from a generator whose next 64 bits are `word`."""
        bits = np.random.PCG64(0)
        state: dict[str, Any] = dict(bits.state)
        state["state"] = {"state": ((word - 1) * pow(multiplier, -1, whole)) % whole, "inc": 1}
        bits.state = state
        return np.random.Generator(bits).standard_normal()

    places = [1 if layer == 1 else 1 << 51 for layer in range(256)]  # in the layer of no area only 0 is at once inside
    assert widths == [draw(place << 9 | layer) / place for layer, place in enumerate(places)]


def test_runs_are_those_of_python(engine: Page) -> None:
    wanted = settings()
    worst = 0.0
    for setting, found in zip(wanted, compute(engine, wanted)):
        assert "error" not in found, (setting, found["error"])
        told, frames = in_python(setting)
        mine = [base64.b64decode(text) for text in found["frames"]]
        here, there = arrays(mine, protocol.POSITIONS), arrays(frames, protocol.POSITIONS)
        assert here.shape == there.shape, setting
        worst = max(worst, float(np.abs(here - there)[-1].max()))
        assert np.abs(here - there).max() < NEAR, setting
        away = np.abs(arrays(mine, protocol.POSITIONS, 1) - arrays(frames, protocol.POSITIONS, 1)).max()
        assert away < 10 * NEAR, setting  # near pi the distance to token 1 is steeper than the position
        np.testing.assert_array_equal(arrays(mine, protocol.LEADERS), arrays(frames, protocol.LEADERS), str(setting))
        for name in ("clusters", "merges"):
            assert [_plain(item) for item in found["curves"][name]] == [_plain(item) for item in told["curves"][name]]
        for name in ("renyi", "strong", "energy"):
            if told["curves"][name] is None:
                assert found["curves"][name] is None
            else:
                np.testing.assert_allclose(found["curves"][name], told["curves"][name], atol=1e-6, err_msg=str(setting))
        assert found["facts"]["centers"] == told["facts"]["centers"], setting
        assert found["facts"]["strong"] == told["facts"]["strong"], setting
        assert found["facts"]["prediction"]["text"] == told["facts"]["prediction"]["text"], setting
        _same_law(list(found["facts"]["expected"].values()), list(told["facts"]["expected"].values()))
        assert found["end"]["reached"] == told["end"]["reached"], setting
        assert found["begin"]["delta"] == pytest.approx(told["begin"]["delta"], rel=1e-14)
        assert found["begin"]["times"] == pytest.approx(told["begin"]["times"], rel=1e-14)
        _same_law(found["facts"]["law"], told["facts"]["law"])
        _same_spectrum(found["facts"]["spectrum"], told["facts"]["spectrum"])
        _same_spectrum([found["facts"]["total"]], [told["facts"]["total"]])
    print(f"\n{len(wanted)} settings: positions at t = 20 differ by at most {worst:.1e}")


def test_sums_that_leave_out_whom_nobody_feels(engine: Page) -> None:
    """Lists and series against the reference engine, also after the tokens have gone elsewhere: velocities of Q = K = V = I."""
    draw, cases = np.random.default_rng(12), []
    frozen = {"tokens": [[0.6, 0.8], [-1.0, 0.0]], "weights": [4.0, 0.5]}
    masks = [None, {"kind": "full"}, {"kind": "window", "width": 7}, {"kind": "prefix", "length": 20}]
    for number in range(40):
        dim, tokens = pick(draw, [2, 2, 3, 5]), int(draw.integers(2, 130))
        model: dict[str, Any] = {"dim": dim, "beta": float(np.exp(draw.uniform(np.log(0.05), np.log(3000))))}
        mask = pick(draw, [None, None, *masks])
        model |= {} if mask is None else {"mask": mask}
        model |= {"frozen": frozen} if dim == 2 and number % 4 == 0 else {}
        near = 1.0 + 1e-3 * draw.standard_normal((tokens, dim))
        near /= np.linalg.norm(near, axis=1, keepdims=True)
        states = [ms.sphere.uniform(tokens, dim=dim, seed=number), near, ms.sphere.uniform(tokens, dim=dim, seed=99)]
        cases.append({"model": model, "tokens": tokens, "states": [state.ravel().tolist() for state in states]})
    angles = np.linspace(0, 2 * np.pi, 121)[:-1]  # some of whom are as far away as numbers reach: exp(-710)
    even = np.stack([np.cos(angles), np.sin(angles)], axis=1).ravel().tolist()
    cases += [{"model": {"dim": 2, "beta": beta}, "tokens": 120, "states": [even]} for beta in (354.0, 355.5, 357.0)]
    script = """async (cases) => {
      const { modelOf } = await import("/static/engine/setting.js");
      const { Force, horizonOfSight } = await import("/static/engine/force.js");
      return cases.map(({ model: table, tokens, states }) => {
        const model = modelOf(table, tokens), force = new Force(model, tokens, horizonOfSight(tokens, 20)), { dim } = model, spins = [];
        const all = new Force(model, tokens), velocities = states.map((state) => {
          const out = new Float64Array(state.length);
          force.velocity(0, Float64Array.from(state), out);
          if (dim === 2) {
            const turns = new Float64Array(tokens);
            force.spin(0, Float64Array.from(turns, (_, k) => Math.atan2(state[2 * k + 1], state[2 * k])), turns);
            spins.push(Array.from(turns));
          }
          const whole = new Float64Array(state.length); // the same with nobody left out
          all.velocity(0, Float64Array.from(state), whole);
          if (!whole.every((value, i) => Math.abs(value - out[i]) < 3e-11)) throw new Error(`beta = ${table.beta}`);
          return Array.from(out);
        });
        return { velocities, spins, series: Boolean(force.series), left: 1 - force.sight.first[tokens] / force.sight.who.length };
      });
    }"""
    found = engine.evaluate(script, cases)
    for case, item in zip(cases, found):
        model = ms.Attention.from_dict(case["model"])
        for number, flat in enumerate(case["states"]):
            state = np.array(flat).reshape(-1, model.dim)
            wanted = ms.velocity(model, state, engine="reference")
            np.testing.assert_allclose(np.reshape(item["velocities"][number], state.shape), wanted, atol=3e-11)
            if model.dim == 2:
                turns = state[:, 0] * wanted[:, 1] - state[:, 1] * wanted[:, 0]
                np.testing.assert_allclose(item["spins"][number], turns, atol=3e-11)
    assert sum(item["series"] for item in found) > 4  # both ways are tried,
    assert sum(not item["series"] for item in found) > 5
    assert sum(item["left"] > 0.3 for item in found) > 5  # and lists that leave somebody out


LONG: list[tuple[dict[str, Any], float]] = [
    ({"model": {"dim": 2, "beta": 16.0}, "start": {"tokens": 60, "seed": 3}}, 1e12),
    ({"model": {"dim": 2, "beta": 32.0}, "start": {"tokens": 40, "seed": 0}}, 1e30),
    (
        {
            "model": {"dim": 2, "beta": 36.0, "mask": {"kind": "window", "width": 16}},
            "start": {"tokens": 50, "seed": 0},
        },
        1e6,
    ),
    (
        {
            "model": {"dim": 2, "beta": 64.0, "frozen": {"tokens": [[1.0, 0.0], [0.0, 1.0]], "weights": [4.0, 1.0]}},
            "start": {"tokens": 50, "seed": 0},
        },
        5000.0,
    ),
]


def test_long_horizons_on_the_circle(engine: Page) -> None:
    """Implicit steps of both: the same cascade of merges, and the same ends."""
    for setting, until in LONG:
        clock = {"until": until, "log": True}
        (found,) = compute(engine, [setting], clock)
        told, frames = in_python(setting, clock)
        assert found["end"]["status"] == "success"
        assert found["end"]["method"] == "tsit5 to t = 64, then rodas"
        mine = [base64.b64decode(text) for text in found["frames"]]
        here, there = arrays(mine, protocol.POSITIONS), arrays(frames, protocol.POSITIONS)
        assert here.shape == there.shape
        assert np.abs(here[-1] - there[-1]).max() < 1e-4
        # A merger takes a moment of an endless time: a frame that falls into one may see it begun or done.
        unequal = np.flatnonzero(np.array(found["curves"]["clusters"]) != np.array(told["curves"]["clusters"]))
        assert len(unequal) <= 3, (setting, unequal)
        assert np.median(np.abs(here - there).max(axis=(1, 2))) < NEAR
        assert found["end"]["reached"]["agrees"] == told["end"]["reached"]["agrees"]


def _plain(item: Any) -> Any:
    return item if not isinstance(item, dict) else {**item, "time": round(item["time"], 9)}


def _same_law(here: list[float | None] | None, there: list[float | None] | None) -> None:
    assert (here is None) == (there is None)
    if here is not None and there is not None:
        for one, other in zip(here, there):
            assert (one is None) == (other is None)
            assert one is None or one == pytest.approx(other, rel=1e-9)


def _same_spectrum(here: list[Any], there: list[Any]) -> None:
    for one, other in zip(here, there):
        first, second = (np.sort_complex(np.round([complex(*pair) for pair in side], 7)) for side in (one, other))
        np.testing.assert_allclose(first, second, atol=1e-6)


def test_predictions_are_those_of_python(engine: Page) -> None:
    """Every row of Table 1, Jordan blocks, complex pairs, repeated and vanishing eigenvalues."""
    draw, matrices = np.random.default_rng(3), []
    for number in range(64):
        dim = int(draw.integers(2, 9))
        frame = np.linalg.qr(draw.standard_normal((dim, dim)))[0]
        matrices.append(
            [
                draw.standard_normal((dim, dim)),
                np.diag(draw.integers(-2, 3, dim).astype(float)),
                frame @ np.diag([1.0, 1.0, *draw.uniform(-1, 0.9, dim - 2)]) @ frame.T,
                np.eye(dim) + np.diag(np.ones(dim - 1), 1),
                draw.integers(-1, 2, (dim, dim)).astype(float),
                np.roll(np.eye(dim), 1, axis=1),
                -np.eye(dim) + np.diag(draw.uniform(-1, 0, dim)),
                np.diag([*[-1.0] * (dim - 1), 0.5]),
            ][number % 8]
        )
    turn = np.array([[0.0, -1.0], [1.0, 0.0]])
    matrices += [turn, turn - 0.5 * np.eye(2), turn + np.eye(2), np.pad(turn, (0, 1)), np.pad(turn, (0, 1)) - np.eye(3)]
    script = """async (cases) => {
      const { modelOf } = await import("/static/engine/setting.js");
      const { predict } = await import("/static/engine/atlas.js");
      return cases.map((value) => {
        const found = predict(modelOf({ dim: value.length, beta: 4, value }, 3)), { row, configuration, re, im } = found;
        const blocks = [found.multiplicity, found.geometric, found.longest];
        return { row, configuration, value: [re, im], blocks, space: found.subspace.map((axis) => Array.from(axis)) };
      });
    }"""
    found = engine.evaluate(script, [matrix.tolist() for matrix in matrices])
    for matrix, item in zip(matrices, found):
        wanted = ms.predict(ms.Attention(dim=len(matrix), beta=4.0, value=matrix))
        assert (item["row"], item["configuration"]) == (wanted.row, wanted.configuration), matrix
        assert complex(*item["value"]) == pytest.approx(complex(wanted.eigenvalue), abs=1e-6)
        assert item["blocks"] == [wanted.multiplicity, wanted.geometric_multiplicity, wanted.longest_block], matrix
        space = np.array(item["space"]).T
        np.testing.assert_allclose(space @ space.T, wanted.subspace @ wanted.subspace.T, atol=1e-6)


def test_attention_and_changes_by_hand(engine: Page) -> None:
    before = {"model": {"dim": 3, "beta": 16.0}, "start": {"tokens": 120, "seed": 4}}
    after = {**before, "start": {**before["start"], "placed": [[50, [0.0, 1.0, 0.5]]], "removed": [70]}}
    look = {"panel": 0, "run": 1, "setting": before, "clock": CLOCK, "frame": 150}
    orders = [{"type": "attention", **look}, {**look, "type": "simulate", "setting": after, "before": before}]
    seen, changed = engine.evaluate(RUN, orders)
    (message,) = job.perform({"kind": "attention", **look})
    assert isinstance(message, bytes)
    size = protocol.HEADER.size
    here, there = (np.frombuffer(item[size:], "<f4") for item in (base64.b64decode(seen["frames"][0]), message))
    np.testing.assert_allclose(here, there, atol=1e-6)
    told = [item for item in job.perform({"kind": "simulate", **orders[1]}) if isinstance(item, dict)][-1]
    shift = changed["end"]["changed"].pop("earlier_shift")
    assert shift == pytest.approx(told["changed"].pop("earlier_shift"), abs=1e-6)
    assert changed["end"]["changed"] == told["changed"]


def test_files_are_those_of_python(engine: Page) -> None:
    heads = {"dim": 2, "heads": [{"beta": 4}, {"beta": 9, "value": {"eigenvalues": [[0.5, 0.25]]}}]}
    window = {"dim": 3, "beta": 2.5, "value": {"gaussian": 7}, "mask": {"kind": "window", "width": 4}}
    noisy = {"dim": 2, "beta": 9, "noise": 0.1, "norm": {"kind": "ngpt", "alpha": 0.5}}
    by_hand = {"tokens": 9, "seed": 1, "appended": [[0.5, 2]], "placed": [[1, [1, 0]]], "removed": [2]}
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"model": {"dim": 2, "beta": 64}, "start": {"tokens": 20, "seed": 3}}, {"until": 1e30, "log": True}),
        (
            {"model": window, "start": {"tokens": 9, "seed": 0, "kind": "chain", "correlation": 0.5}},
            {"until": 5, "log": False},
        ),
        ({"model": noisy, "start": by_hand}, {"until": 2, "log": True}),
        (
            {"model": heads, "start": {"tokens": 12, "seed": 1}, "delta": 0.5, "radius": 0.05},
            {"until": 4, "log": False},
        ),
    ]
    for setting, clock in cases:
        body = {"settings": [setting], "setting": setting, "clock": clock}
        names = ["python", "toml"] + (["csv"] if clock["until"] < 100 else [])
        script = """async ([names, body]) => {
          const { file } = await import("/static/engine/files.js"), made = {};
          for (const name of names) {
            const steps = file(name, body);
            let step = steps.next();
            while (!step.done) step = steps.next();
            made[name] = typeof step.value.body === "string" ? step.value.body : Array.from(step.value.body);
          }
          return made;
        }"""
        made = engine.evaluate(script, [names, body])
        checked, moments = Setting.from_dict(setting), Clock.from_dict(clock)
        assert made["python"] == python_code([checked], moments)
        _, wanted = exports._toml(checked, moments, lambda: pytest.fail("a setting needs no run"))
        assert _toml(made["toml"]) == _toml(wanted)
        if "csv" in names:
            _, table = exports._csv(checked, moments, partial(job.run_of, checked, moments))
            here, there = (
                np.genfromtxt(io.BytesIO(text), delimiter=",", skip_header=1) for text in (made["csv"].encode(), table)
            )
            np.testing.assert_allclose(here, there, atol=1e-6)


def _toml(body: str | bytes | list[int]) -> dict[str, Any]:
    """The tables of a TOML file, with the tokens beside it where it is an archive."""
    if isinstance(body, str):
        return tomllib.loads(body)
    import zipfile

    raw = bytes(body)
    if not raw.startswith(b"PK"):
        return tomllib.loads(raw.decode())
    archive = zipfile.ZipFile(io.BytesIO(raw))
    assert archive.testzip() is None
    start = np.loadtxt(io.BytesIO(archive.read("start.csv")), delimiter=",")
    return {**tomllib.loads(archive.read("run.toml").decode()), "tokens": np.round(start, 12).tolist()}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda table: table["model"].update(feedforward={"w1": [[1.0]]}), "a feed-forward layer is not computed in the browser"),
        (lambda table: table["model"].update(masses=[1.0] * 5), "masses of moving tokens is not computed in the browser"),
        (lambda table: table["model"].update(norm={"kind": "mine"}), 'the norm "mine" is not computed in the browser'),
        (lambda table: table["model"].update(mask={"kind": "mine"}), 'the mask "mine" is not computed in the browser'),
        (lambda table: table["model"].update(weights="mine"), 'the weights "mine" are not computed in the browser'),
        (lambda table: table["start"].update(kind="mine"), 'the start "mine" is not drawn in the browser'),
        (lambda table: table["model"].update(heads=[{"beta": 1.0, "rotary": {}}], beta=None), "rotary are not computed in the browser"),
        (lambda table: table["model"].update(beta="hot"), "beta must be a number"),
        (lambda table: table["model"].update(query=[[1, 2], ["x", 4]]), "query has an entry that is not a number"),
        (lambda table: table["start"].update(tokens=3000), "up to 2000 tokens"),
        (lambda table: table["model"].update(noise=3.0, dim=4), "needs the exact law of Brownian motion"),
    ],
)  # fmt: skip
def test_what_the_browser_cannot_do_it_says(engine: Page, change: Callable[[dict], None], words: str) -> None:
    setting = json.loads(json.dumps({"model": {"dim": 2, "beta": 4.0}, "start": {"tokens": 5, "seed": 0}}))
    change(setting)
    (found,) = compute(engine, [setting])
    assert words in found["error"]["message"]

"""Jobs: pages get frames of real runs, and everything said about them agrees with the package itself."""

from __future__ import annotations

import io
import tomllib
import zipfile

import numpy as np
import pytest

import metastable as ms
from metastable.errors import TimeError
from metastable.explorer import job, limits, measure, outcome, protocol
from metastable.explorer.python_code import python_code
from metastable.explorer.setting import Clock, Setting

CIRCLE = {"model": {"dim": 2, "beta": 16.0}, "start": {"tokens": 24, "seed": 1}}
SPHERE = {
    "model": {"dim": 3, "beta": 9.0, "value": {"eigenvalues": [[1.0, 0.0], [0.5, 0.0], [-1.0, 0.0]]}},
    "start": {"tokens": 12, "seed": 2},
}
CLOCK = {"until": 20.0, "log": False}


def perform(setting, clock=CLOCK, **rest):
    """All messages of a job: dictionaries by type, and binary ones unpacked by kind."""
    order = {"kind": "simulate", "panel": 0, "run": 3, "setting": setting, "clock": clock, **rest}
    words, binary = {}, []
    for message in job.perform(order):
        if isinstance(message, dict):
            assert message["type"] not in words
            protocol.dumps(message)
            words[message["type"]] = message
        else:
            binary.append(message)
    return words, binary


def frames(binary):
    """Positions (frames, tokens, components) and leaders (frames, tokens), put together as the page does."""
    positions, leaders = {}, {}
    for message in binary:
        _, kind, _, _, first, count, tokens, components = protocol.HEADER.unpack(message[:24])
        if kind == protocol.POSITIONS:
            block = np.frombuffer(message[24:], "<f4")[: count * tokens * components]
            for offset, frame in enumerate(block.reshape(count, tokens, components)):
                positions[first + offset] = frame
        elif kind == protocol.LEADERS:
            for offset, frame in enumerate(np.frombuffer(message[24:], "<u2").reshape(count, tokens)):
                leaders[first + offset] = frame
    return (np.stack([table[k] for k in range(len(table))]) for table in (positions, leaders))


@pytest.mark.parametrize("data", [CIRCLE, SPHERE])
def test_frames_are_the_run(data):
    words, binary = perform(data)
    setting, clock = Setting.from_dict(data), Clock.from_dict(CLOCK)
    run = ms.simulate(setting.model, setting.positions, until=20.0, max_steps=setting.options(clock)["max_steps"])
    positions, leaders = frames(binary)
    times = setting.times(clock)
    assert len(positions) == len(leaders) == len(times) == words["end"]["frames"] == limits.FRAMES
    for frame in (0, 100, 360):
        np.testing.assert_allclose(positions[frame], run.at(times[frame]), atol=1e-6)
    labels = ms.cluster_labels(run.final, radius=setting.cluster_radius)
    assert words["curves"]["clusters"][-1] == labels.max() + 1
    np.testing.assert_array_equal(leaders[-1], [np.flatnonzero(labels == label)[0] for label in labels])
    centers = ms.renyi_centers(setting.positions, setting.separation)
    assert words["facts"]["centers"] == centers.tolist()
    fraction = ms.consumed(run.at(times[100]), centers, 0.1 * setting.separation)
    assert words["curves"]["renyi"][100] == pytest.approx(fraction)
    assert words["facts"]["prediction"]["row"] == ms.predict(setting.model).row


def test_what_was_predicted_and_reached_is_said():
    words, _ = perform(SPHERE, {"until": 200.0, "log": True})
    assert words["facts"]["prediction"]["text"] == "two points, ξ and −ξ (conjecture)"
    assert words["end"]["reached"]["agrees"] is True
    assert words["end"]["reached"]["text"].startswith("two points, ξ and −ξ by t = ")


def test_a_long_run_is_previewed():
    order = {"kind": "simulate", "panel": 0, "run": 3, "setting": {**CIRCLE, "start": {"tokens": 9, "seed": 5}}}
    kinds = [
        message["type"] if isinstance(message, dict) else "binary"
        for message in job.perform({**order, "clock": {"until": 1e5, "log": True}})
    ]
    assert kinds.index("binary") < kinds.index("view")


def test_full_attention_climbs_its_energy_and_causal_attention_has_none():
    words, _ = perform({**CIRCLE, "model": {**CIRCLE["model"], "mask": {"kind": "full"}}})
    energy = np.array(words["curves"]["energy"])
    assert (np.diff(energy) > -1e-12).all()
    assert 0 < energy[0] < energy[-1] <= 1 + 1e-12
    words, _ = perform(CIRCLE)
    assert words["curves"]["energy"] is None


def test_changes_are_told_apart_under_the_causal_mask():
    moved = {**CIRCLE, "start": {**CIRCLE["start"], "placed": [[10, [0.0, 1.0]]]}}
    words, _ = perform(moved, before=CIRCLE)
    changed = words["end"]["changed"]
    assert changed["moved"] == [10]
    assert (changed["earlier"], changed["later"], changed["added"]) == (10, 14, 0)
    assert changed["earlier_shift"] < 1e-4
    assert changed["elsewhere"] >= 1
    words, _ = perform({**CIRCLE, "start": {**CIRCLE["start"], "appended": [[0.0, 1.0]]}}, before=CIRCLE)
    assert words["end"]["changed"]["added"] == 1
    words, _ = perform({**CIRCLE, "start": {**CIRCLE["start"], "removed": [10]}}, before=CIRCLE)
    changed = words["end"]["changed"]
    assert (changed["moved"], changed["removed"], changed["earlier"], changed["later"]) == ([], 1, 10, 13)
    assert words["end"]["changed"]["earlier_shift"] < 1e-4


def test_a_run_that_stops_early_shows_what_it_has(monkeypatch):
    monkeypatch.setattr(limits, "MAX_STEPS", 100)
    rotating = {"dim": 3, "beta": 9.0, "value": {"eigenvalues": [[1.0, 1.0], [0.2, 0.0]]}}
    words, binary = perform({"model": rotating, "start": {"tokens": 5}}, {"until": 500.0, "log": False})
    assert words["end"]["status"] == "max_steps"
    assert words["end"]["message"]
    assert 1 <= words["end"]["frames"] < limits.FRAMES
    positions, _ = frames(binary)
    assert len(positions) >= words["end"]["frames"]


def test_attention_matrix_is_that_of_the_model():
    setting, clock = Setting.from_dict(CIRCLE), Clock.from_dict(CLOCK)
    order = {"kind": "attention", "panel": 1, "run": 4, "setting": CIRCLE, "clock": CLOCK}
    (message,) = job.perform({**order, "frame": 200})
    matrix = np.frombuffer(message[24:], "<f4").reshape(24, 24)
    x = job.run_of(setting, clock).at(setting.times(clock)[200])
    logits = np.where(np.tril(np.ones((24, 24))) > 0, 16.0 * x @ x.T, -np.inf)
    expected = np.exp(logits - logits.max(axis=1, keepdims=True))
    np.testing.assert_allclose(matrix, expected / expected.sum(axis=1, keepdims=True), atol=1e-6)
    with pytest.raises(TimeError, match="no frame"):
        list(job.perform({**order, "frame": 361}))


def test_large_attention_matrices_are_averaged_with_rows_that_still_add_up():
    x = ms.sphere.uniform(250, dim=3, seed=0)
    matrix = measure.attention_matrix(ms.Attention(dim=3, beta=2.0), x)
    assert matrix.shape == (measure.ATTENTION_SIZE,) * 2
    np.testing.assert_allclose(matrix.sum(axis=1), 1.0)


def test_projections_of_high_dimensions():
    table = {"dim": 6, "beta": 4.0, "value": {"eigenvalues": [[1.0, 0.0], [1.0, 0.0], *[[-1.0, 0.0]] * 4]}}
    data = {"model": table, "start": {"tokens": 10}}
    states = ms.sphere.uniform(50, dim=6, seed=0).reshape(5, 10, 6)
    for kind, name in (("auto", "L and 1 principal axes"), ("principal", "principal axes"), ("leading", "L and")):
        view = measure.view_of(Setting.from_dict({**data, "projection": kind}), states)
        assert view is not None
        assert view.name.startswith(name)
        np.testing.assert_allclose(view.axes.T @ view.axes, np.eye(3), atol=1e-12)
    view = measure.view_of(Setting.from_dict({**data, "projection": "leading"}), states)
    assert view is not None
    assert abs(np.linalg.det(view.axes[:2, :2])) == pytest.approx(1.0)


def test_the_law_is_shown_only_where_it_holds():
    times = np.array([0.0, 1.0, 10.0, 1e3])
    law = measure.law(Setting.from_dict({**CIRCLE, "start": {"tokens": 300}}), times)
    assert law is not None
    assert law[:2] == [None, None]
    assert law[2] == pytest.approx(ms.theory.cluster_count(10.0, 16.0, 2))
    assert measure.law(Setting.from_dict(SPHERE), times) is None
    full = {"model": {**CIRCLE["model"], "mask": {"kind": "full"}}, "start": CIRCLE["start"]}
    assert measure.law(Setting.from_dict(full), times) is None


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (37.24, "37.2"), (5000.0, "5000"), (3.2e7, "3.2·10⁷"), (1e30, "10³⁰")]
)
def test_numbers_are_written_as_people_do(value, text):
    assert outcome.number(value) == text


# ------------------------------------------------------------------------------------------------------------- code

VARIANTS = [
    CIRCLE,
    SPHERE,
    {
        "model": {
            "dim": 2,
            "beta": 4.0,
            "value": {"eigenvalues": [[0.5, 1.0]]},
            "mask": {"kind": "sink", "sinks": 1, "width": 4},
        },
        "start": {"tokens": 8, "placed": [[2, [0.3, -0.4]]], "appended": [[1.0, 2.0], [0.0, -1.0]]},
    },
    {
        "model": {
            "dim": 3,
            "beta": 4.0,
            "query": {"gaussian": 5},
            "key": [[1.0, 0.0, 0.2], [0.0, 1.0, 0.0], [0.0, 0.0, 2.0]],
            "norm": {"kind": "mix_ln", "tau": 2.0},
            "weights": "unnormalized",
        },
        "start": {"tokens": 6, "seed": 4},
    },
    {
        "model": {"dim": 2, "beta": 8.0, "frozen": {"tokens": [[1.0, 0.0], [-0.6, 0.8]], "weights": [1.0, 2.0]}},
        "start": {"tokens": 7},
    },
    {
        "model": {
            "dim": 2,
            "heads": [{"beta": 1.0}, {"beta": 3.0, "value": [[0.0, 1.0], [1.0, 0.0]]}],
            "bias": {"slope": 0.1},
        },
        "start": {"tokens": 5},
    },
    {"model": {"dim": 2, "beta": 8.0, "noise": 0.1}, "start": {"tokens": 7, "seed": 11}},
]


@pytest.mark.parametrize("data", VARIANTS)
@pytest.mark.parametrize("log", [False, True])
def test_the_python_gives_the_same_final_state(data, log, capsys):
    setting, clock = Setting.from_dict(data), Clock(4.0, log)
    scope: dict = {}
    exec(compile(python_code([setting], clock), "shown.py", "exec"), scope)
    np.testing.assert_array_equal(scope["run"].final, job.run_of(setting, clock).final)
    assert "reached:" in capsys.readouterr().out


def test_the_python_of_two_settings_runs_both(capsys):
    settings, clock = [Setting.from_dict(CIRCLE), Setting.from_dict(SPHERE)], Clock(3.0)
    scope: dict = {}
    exec(compile(python_code(settings, clock), "shown.py", "exec"), scope)
    for name, setting in zip(("left_run", "right_run"), settings):
        np.testing.assert_array_equal(scope[name].final, job.run_of(setting, clock).final)
    capsys.readouterr()


# --------------------------------------------------------------------------------------------------------- downloads


def download(kind, setting, clock=CLOCK):
    about, *pieces = job.perform({"kind": "export", "format": kind, "setting": setting, "clock": clock})
    body = b"".join(pieces)
    assert about["size"] == len(body)
    return about["name"], body


def test_csv_holds_the_run():
    name, body = download("csv", CIRCLE)
    assert name == "run.csv"
    table = np.genfromtxt(io.BytesIO(body), delimiter=",", names=True)
    assert table.dtype.names == ("time", "token", "x1", "x2", "cluster")
    last = table[table["time"] == 20.0]
    run = job.run_of(Setting.from_dict(CIRCLE), Clock.from_dict(CLOCK))
    np.testing.assert_array_equal(np.column_stack([last["x1"], last["x2"]]), run.at(20.0))


def test_zarr_opens_again(tmp_path):
    name, body = download("zarr", CIRCLE)
    assert name == "run.zarr.zip"
    zipfile.ZipFile(io.BytesIO(body)).extractall(tmp_path)
    run = ms.load(tmp_path / "run.zarr")
    np.testing.assert_array_equal(run.final, job.run_of(Setting.from_dict(CIRCLE), Clock.from_dict(CLOCK)).final)


def test_toml_describes_the_run():
    _, body = download("toml", SPHERE)
    tables = tomllib.loads(body.decode())
    assert ms.Attention.from_dict(tables["model"]) == Setting.from_dict(SPHERE).model
    assert tables["start"] == {"tokens": 12, "seed": 2}
    assert tables["run"]["until"] == 20.0
    moved = {**CIRCLE, "start": {**CIRCLE["start"], "placed": [[0, [0.6, 0.8]]]}}
    name, body = download("toml", moved)
    assert name == "run.toml.zip"
    archive = zipfile.ZipFile(io.BytesIO(body))
    assert tomllib.loads(archive.read("run.toml").decode())["start"] == {"file": "start.csv"}
    start = np.loadtxt(io.BytesIO(archive.read("start.csv")), delimiter=",")
    np.testing.assert_array_equal(start, Setting.from_dict(moved).positions)


def test_film_is_a_film(monkeypatch):
    from metastable.explorer import exports

    monkeypatch.setattr(exports, "FILM_SECONDS", 0.2)
    name, body = download("mp4", {**CIRCLE, "start": {"tokens": 6}})
    assert name == "run.mp4"
    assert body[4:8] == b"ftyp"

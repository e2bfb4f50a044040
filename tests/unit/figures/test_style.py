"""The style: colours that can be told apart, axes that stay legible, files that are equal when figures are."""

import numpy as np
import pytest

from metastable.errors import InvalidInputError, StoreError
from metastable.figures import style


def luminance(colors):
    """Relative luminance (WCAG) of RGB colours in 0..1."""
    rgb = np.asarray(colors)[..., :3]
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return linear @ np.array([0.2126, 0.7152, 0.0722])


def test_sequence_map_is_ordered_by_lightness():
    steps = luminance(style.sequence_map()(np.linspace(0, 1, 64)))
    assert (np.diff(steps) > 0).all()


def test_categorical_colors_are_distinct():
    from matplotlib.colors import to_rgb

    colors = np.array([to_rgb(color) for color in style.CATEGORICAL])
    gaps = np.linalg.norm(colors[:, None] - colors[None], axis=-1)
    assert gaps[np.triu_indices(len(colors), 1)].min() > 0.2


def test_centers_differ_from_each_other_in_lightness():
    from matplotlib.colors import to_rgb

    assert luminance(to_rgb(style.STRONG)) > 3 * luminance(to_rgb(style.RENYI))


def test_token_colors_shape_and_order():
    colors = style.token_colors(10)
    assert colors.shape == (10, 4)
    assert (np.diff(luminance(colors)) > 0).all()
    assert style.token_colors(1).shape == (1, 4)


def test_unknown_theme_is_refused():
    with pytest.raises(InvalidInputError, match="theme"), style.theme("poster"):
        pass


def test_theme_leaves_settings_as_they_were():
    import matplotlib

    before = matplotlib.rcParams["font.family"]
    with style.theme("print"):
        assert matplotlib.rcParams["font.family"] == ["STIXGeneral"]
    assert matplotlib.rcParams["font.family"] == before


@pytest.mark.parametrize(
    ("t", "expected"),
    [
        (0.0, "$t = 0$"),
        (75.0, "$t = 75$"),
        (9999.7, "$t = 10000$"),
        (12340.0, "$t = 12340$"),
        (9.96e5, "$t = 10^{6}$"),
        (1e12, "$t = 10^{12}$"),
        (2.5e30, r"$t = 2.5\times 10^{30}$"),
    ],
)
def test_time_label(t, expected):
    assert style.time_label(t) == expected


@pytest.mark.parametrize("high", [1e3, 1e9, 1e56])
def test_log_time_axis_has_few_round_decades(high):
    _page, ax = style.figure()
    style.log_time_axis(ax, 0.1, high)
    ticks = ax.xaxis.get_majorticklocs()
    assert 2 <= len(ticks) <= 8
    np.testing.assert_allclose(np.log10(ticks), np.rint(np.log10(ticks)))


def test_equal_figures_are_equal_files(tmp_path):
    def draw(name):
        with style.theme("print"):
            page, ax = style.figure()
            ax.plot([0, 1], [0, 1])
            return style.save(page, tmp_path / name, ("png", "pdf", "svg"))

    first, second = draw("a"), draw("b")
    assert [path.suffix for path in first] == [".png", ".pdf", ".svg"]
    for one, other in zip(first, second):
        assert one.read_bytes() == other.read_bytes()


def test_saving_into_nowhere_says_so(tmp_path):
    page, _ = style.figure()
    with pytest.raises(StoreError, match="could not be written"):
        style.save(page, tmp_path / "missing" / "figure")

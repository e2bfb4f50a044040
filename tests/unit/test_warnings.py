"""The tests turn what our own modules are warned about into errors; other packages' warnings about themselves stay warnings."""

import warnings

import pytest


@pytest.mark.parametrize(
    "kind",
    [RuntimeWarning, DeprecationWarning, PendingDeprecationWarning, FutureWarning],
    ids=lambda kind: kind.__name__,
)
@pytest.mark.parametrize("module", ["metastable", "metastable.kernels.cpu.circle"])
def test_ours_are_errors(kind, module):
    with pytest.raises(kind, match="old"):
        warnings.warn_explicit("old", kind, "somewhere.py", 1, module=module)


@pytest.mark.filterwarnings("default")
def test_the_configuration_is_what_does_it():
    """Without the filters of pyproject.toml the same is a warning."""
    with pytest.warns(DeprecationWarning, match="old"):
        warnings.warn_explicit("old", DeprecationWarning, "somewhere.py", 1, module="metastable.kernels")


@pytest.mark.parametrize("module", ["numpy", "metastable_extension"])
def test_others_are_not(module):
    with pytest.warns(DeprecationWarning, match="old"):
        warnings.warn_explicit("old", DeprecationWarning, "somewhere.py", 1, module=module)

"""Of how many members the means of a picture are, in words."""

import numpy as np
import xarray as xr

from metastable.figures.arrangement import reduce_members


def test_members_that_are_not_there_yet_are_not_counted():
    """Of a sweep whose first draw was finished legends said "of 12 members", where every mean was one of 4."""
    values = np.arange(24.0).reshape(2, 3, 4)
    whole = xr.DataArray(values, dims=("beta", "draw", "member"))
    assert reduce_members(whole).averaged == "12 members"
    assert "of 12 members" in reduce_members(whole).band
    begun = whole.where(whole.draw == 0)
    assert reduce_members(begun).averaged == "members"
    assert "12" not in reduce_members(begun).band
    # Points of which there is nothing yet say nothing of the others.
    assert reduce_members(whole.where(xr.DataArray([True, False], dims="beta"))).averaged == "12 members"

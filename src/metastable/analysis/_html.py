"""Small tables for notebooks."""

from metastable.model.describe import table

__all__ = ["table"]

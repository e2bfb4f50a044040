"""A file is found by its name: none occurs more than twice in the package (`__init__.py` aside)."""

from collections import Counter
from pathlib import Path

import metastable


def test_no_file_name_occurs_more_than_twice():
    root = Path(metastable.__file__).parent
    count = Counter(path.name for path in root.rglob("*.py") if path.name != "__init__.py")
    assert sum(count.values()) > 200
    assert [name for name, times in count.items() if times > 2] == []

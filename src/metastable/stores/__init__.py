"""Writing to disk so that nothing is lost: files and folders that appear whole or not at all, and locks.

The one place of the package that replaces what is stored. Whatever happens to a writer (an exception, Ctrl-C, `kill -9`, a full
disk), afterwards there is one whole store, the old one or the new one; what the writer left behind is recognised, undone and
removed by the next reader or writer, and the work of a writer that is alive is never touched.
"""

from metastable.stores.files import check_folder, new_file, storage_error, write_file
from metastable.stores.folders import claimed, find, new_folder, settle, steadily, tidy

__all__ = [
    "check_folder",
    "claimed",
    "find",
    "new_file",
    "new_folder",
    "settle",
    "steadily",
    "storage_error",
    "tidy",
    "write_file",
]

"""The explorer: a page on the local machine where tokens move, drawn from real runs of the engines.

`metastable explore` starts it. The page draws; everything is computed here, by the same functions that users call
in Python:

- `setting` : what a page may ask for, checked like any other input and limited in size before anything is allocated;
- `job`, `worker`, `pool` : runs happen in worker processes, so that they can be stopped at any moment;
- `measure` : what is shown beside the moving tokens (clusters, centers, capture curves, prediction and outcome);
- `session`, `protocol`, `server`, `security` : one WebSocket per page, compact binary frames, loopback only;
- `presets`, `python_code`, `exports` : known settings, the Python behind a picture, and downloads.
"""

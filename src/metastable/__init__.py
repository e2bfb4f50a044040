"""metastable: the laboratory for attention dynamics.

Tokens are particles on the unit sphere, moved by causal (or any other) self-attention. They clump into metastable clusters
seeded by Renyi parking centers, and in the end collapse as the value matrix dictates (arXiv:2411.04990).

>>> import metastable as ms
>>> model = ms.Attention(dim=2, beta=64.0)
>>> start = ms.sphere.uniform(200, dim=2, seed=0)
>>> run = ms.simulate(model, start, until=200.0)
>>> run.status
'success'

Public names are listed in `__init__.pyi`, beside this file, and imported on first use: `import metastable` stays fast, and
optional parts stay optional.
"""

import lazy_loader

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Infinitely many tokens: densities instead of particles.

- `Density`: a law of tokens on the circle, on S^2, or zonal in any dimension; `CausalDensity`: one for each position of a sequence
- `evolve(model, density, times)`: how it moves, with noise and frozen tokens -> `Evolution`
- `growth_rates`, `fastest_mode`: how perturbations of the uniform density grow; the number of clusters that appears first
- `stationary(model, start)` -> `StationaryState`, `branch`, `uniform_branch` -> `Branch`, `onset`: states at which attraction and
  noise balance
- `critical_kappa`, `tricritical_beta`: where the uniform state loses its stability, and from where on with a jump
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Pictures: one style, primitives that draw on a given axis, the paper's figures, animation. Nothing here simulates.

- `style`: themes, colours, sizes, `figure`, `save`
- `draw_run(run)`, `animate(run, path)`: what `Run.plot` and `Run.animate` call
- `sphere_view`, `circle_view`, `curves`: primitives that draw on a given matplotlib axis
- `figure_1` ... `figure_6`, `statements`: the figures of arXiv:2411.04990 and of its statements, from arrays
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

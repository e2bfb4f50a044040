"""Pictures: one style, primitives that draw on a given axis, the paper's figures, animation. Nothing here simulates."""

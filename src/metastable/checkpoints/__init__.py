"""Real transformer checkpoints under the instruments of the theory: spectra of value matrices, geometry of token clouds,
effective temperatures, and real heads as models that can be simulated.

    from metastable import checkpoints

    weights = checkpoints.load_weights("model.gguf")              # or a folder, a .safetensors file, a hub id, a torch module
    spectra = checkpoints.ov_spectra(weights)                     # Figures 5 and 6 of arXiv:2411.04990
    model, tokenizer = checkpoints.load_model("model.gguf")
    states = checkpoints.token_states(model, tokenizer, text)     # (layer, token, feature)
    cloud = checkpoints.to_sphere(states, drop_first=1, drop_dims=3)
    checkpoints.token_geometry(cloud)
    flow = checkpoints.flow("model.gguf")                         # the model's own layers as a vector field
    flow.run(text, parts="attention", layer=10, until=200.0)      # what if: no MLP, one layer looped
    checkpoints.meaning("model.gguf")                             # eigenvectors of value matrices in words

Importing this package needs the core only; torch, transformers and gguf (extra `transformers`) are loaded by the functions that
use them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

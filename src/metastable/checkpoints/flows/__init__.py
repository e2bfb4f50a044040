"""A checkpoint's own layers as a vector field. `metastable.checkpoints.flow` makes a `Flow`; its `run` returns a `FlowRun`.

- `blocks`: which modules of a model are its layers, in which order they are called and with what
- `parts`: which of their submodules add the attention's and the feed-forward part's share to the residual stream
- `field`: a layer as a map and as a velocity, with parts switched off, logits scaled, weights replaced
- `nulls`: random weights of the same shapes
- `beginnings`: from a text, token ids or an array of hidden states to the states that a run starts from; `caches`: from a mapping
  of names to arrays that another library filled
- `solve`: the stack, fixed steps, adaptive steps
- `flow_run`: the result, in the schema of every other run
- `decompose`: what attention and feed-forward part each do in every layer
- `flow`: what users hold; `plan`: what they asked for, checked
- `opening`: from a source to a `Flow`
- `lens`: hidden states read as words
"""

"""What the spectrum of a value matrix means in words; `metastable.checkpoints.meaning` is the way in.

- `modes`: eigenvectors of V_h, left and right, from its small core
- `vocabulary`: the words of a model as inputs (embeddings, normed) and as outputs (unembedding, final norm folded in)
- `nulls`: what random directions, random planes and Haar heads give
- `measure`: word lists and scores of every head against these; `found`: the dataset that they become
- `compare`: whether heads with a real positive leading eigenvalue read and write the same words more often
"""

"""What the spectrum of a value matrix means in words; `metastable.checkpoints.meaning` is the way in.

- `modes`: eigenvectors of V_h, left and right, from its small core; the same for a random head with its singular values
- `vocabulary`: the words of a model as inputs (embeddings, normed) and as outputs (unembedding, final norm folded in)
- `measure`: word lists and scores of every head against two nulls
- `compare`: whether heads with a real positive leading eigenvalue read and write the same words more often
"""

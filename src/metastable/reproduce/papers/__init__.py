"""One package a paper: each defines `PAPER`, a `metastable.reproduce.Paper`. A package that is added here is found by itself."""

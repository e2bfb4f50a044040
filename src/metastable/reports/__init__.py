"""Tables for the terminal and pages that stand alone: what the commands on language models show of what `checkpoints` measures.

- `geometry_page`: the token cloud of a text (`metastable geometry`); `tables`: spectra and geometry for the terminal, files of spectra
- `flow_study`, `flow_page`: the runs of `metastable flow`, and their page
- `meaning_page`: the words of heads (`metastable meaning`)
"""

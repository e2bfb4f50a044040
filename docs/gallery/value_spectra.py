r"""Do trained heads attract or repel?

Each head of a language model has a value matrix $V_h = O_hW_h$, and the theory asks for its spectrum. The sign score,
$\sum\mathrm{Re}\,\lambda/\sum|\lambda|$, is $+1$ when all eigenvalues lie on the right (attraction) and $-1$ when all
lie on the left. Every head of SmolLM2, layer by layer, beside the band of random matrices with the same singular
values: the signs are learned. Most heads attract, and some repel.
"""

from metastable import checkpoints
from metastable.figures import style
from metastable.figures.spectra import draw_sign_scores

weights = checkpoints.load_weights("smollm2")  # or a .gguf file, a folder, a hub id, a torch module
spectra = checkpoints.ov_spectra(weights)
null = checkpoints.ov_spectra_null(weights, "haar", seed=0)
deviation = float(null.sign_score.std())
far = abs(spectra.sign_score) > 3 * deviation
print(f"{float(far.mean()):.0%} of {far.size} heads are more than three standard deviations of the null away from zero")

with style.theme("screen"):
    page, ax = style.figure(7.6, 3.4)
    draw_sign_scores(ax, spectra, deviation)
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    style.save(page, "value_spectra")

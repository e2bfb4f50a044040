"""What do heads read and write, in words?

The leading eigenvector of a head's value matrix reads some words and writes some. Bars: how alike the two are over
the whole vocabulary, from $-1$ (opposite) to $+1$ (the same). Six heads of SmolLM2 with the first words of each list.
Those that attract say again what they see: quotation marks, *you*, *on*, comparatives. Most heads do no such thing;
the last two, where the lists have little in common, are here to say so. The gray mark is what random heads with the
same singular values do.
"""

from metastable import checkpoints
from metastable.figures import style
from metastable.figures.flow_view import token_label

flow = checkpoints.flow("smollm2")
heads = [(28, 6), (27, 5), (26, 8), (25, 6), (24, 3), (10, 3)]
found = checkpoints.meaning(flow, layer=[layer for layer, _ in heads], head=[3, 5, 6, 8], words=5, draws=60)
rows = [found.sel(layer=layer, head=head).squeeze() for layer, head in heads]


def words(names):
    """The words of a list, one space apart."""
    return "  ".join(token_label(str(name)).strip() for name in names.values)


with style.theme("screen"):
    page, ax = style.figure(8.6, 3.4)
    for place, ((layer, head), row) in enumerate(zip(heads, rows)):
        alike = float(row.alike)
        print(
            f"{layer}.{head}: reads {words(row.read)} | writes {words(row.written)} | alike {alike:+.2f} (p = {float(row.alike_p):.2f})"
        )
        ax.barh(place, alike, height=0.55, color=style.BLUE if alike > 0 else style.VERMILLION)
        ax.plot([float(row.alike_usual)] * 2, [place - 0.38, place + 0.38], color=style.GREY, linewidth=2)
        ax.text(-1.08, place, words(row.read), ha="right", va="center")
        ax.text(1.08, place, words(row.written), ha="left", va="center")
    ax.text(-1.08, -0.85, "reads", ha="right", color=style.MUTED)
    ax.text(1.08, -0.85, "writes", ha="left", color=style.MUTED)
    ax.axvline(0, color=style.MUTED, linewidth=0.8)
    ax.set_xlim(-1, 1)
    ax.set_ylim(len(heads) - 0.4, -0.6)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.set_xlabel("how alike")
    style.save(page, "head_in_words")

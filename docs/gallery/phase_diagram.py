"""Where is the plateau?

A sweep is a grid of ensembles: here nine temperatures, forty depths and twelve draws at each. The colour is the
number of clusters. Along a row it falls at once to a plateau, and the colder it is (upwards) the higher and longer
that plateau is: the lines of equal number climb ever more slowly. The same sweep runs on a laptop and on a cluster,
can be interrupted at any time, and never computes anything twice.
"""

import metastable as ms
from metastable.figures import phase, style

sweep = ms.Sweep.from_toml("""
tokens = 60
members = 12
seed = 0

[model]
dim = 2

[grid]
beta = {log_range = [4.0, 64.0], count = 9}

[run]
times = {log_range = [0.3, 1e6], count = 40}

[observe.clusters]
""")
sweep.run("phase_diagram", workers=0)
clusters = ms.sweep.open_results("phase_diagram").clusters.mean("member")
for beta in (4.0, 16.0, 64.0):
    print(f"beta = {beta:g}: {float(clusters.sel(beta=beta, method='nearest')[-1]):.1f} clusters at t = 10^6")

with style.theme("screen"):
    page, ax = style.figure(6.0, 3.6)
    cells = clusters.transpose("beta", "time")
    mesh = phase.draw_phase(
        ax, cells.time.values, cells.beta.values, cells.values, color_log=True, contours=(2, 3, 4, 6)
    )
    ax.set_xlabel("depth $t$")
    ax.set_ylabel(r"inverse temperature $\beta$")
    ax.set_yticks([4, 8, 16, 32, 64], ["4", "8", "16", "32", "64"])
    ax.minorticks_off()
    bar = page.colorbar(mesh, ax=ax, label="clusters", pad=0.02)
    bar.set_ticks([1, 2, 5, 10, 20], labels=["1", "2", "5", "10", "20"])
    style.save(page, "phase_diagram")

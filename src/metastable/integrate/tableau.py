"""Runge-Kutta methods as tableaus: plain numbers, no classes of solvers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metastable._checks import FloatArray


@dataclass(frozen=True, eq=False)
class Tableau:
    """An explicit Runge-Kutta pair of order five (the step control, `integrate.control`, is for these) with first-same-as-last and a
    continuous extension of degree four.

    Stages `k_i = f(t + c_i h, y + h sum_j a_ij k_j)`; the last row of `a` holds the weights of the solution, so the last stage
    is the first of the next step. `error` are the weights of the embedded error estimate, and
    `y(t + u h) = y + h sum_i k_i sum_p dense[i, p] u^(p+1)`.
    """

    name: str
    a: FloatArray
    c: FloatArray
    error: FloatArray
    dense: FloatArray

    @property
    def stages(self) -> int:
        return len(self.c)


def _lower(rows: list[list[float]]) -> FloatArray:
    a = np.zeros((len(rows), len(rows)))
    for i, row in enumerate(rows):
        a[i, : len(row)] = row
    return a


TSIT5 = Tableau(
    name="tsit5",
    a=_lower(
        [
            [],
            [0.161],
            [-0.008480655492356989, 0.335480655492357],
            [2.8971530571054935, -6.359448489975075, 4.3622954328695815],
            [5.325864828439257, -11.748883564062828, 7.4955393428898365, -0.09249506636175525],
            [5.86145544294642, -12.92096931784711, 8.159367898576159, -0.071584973281401, -0.028269050394068383],
            [
                0.09646076681806523,
                0.01,
                0.4798896504144996,
                1.379008574103742,
                -3.290069515436081,
                2.324710524099774,
            ],
        ]
    ),
    c=np.array([0.0, 0.161, 0.327, 0.9, 0.9800255409045097, 1.0, 1.0]),
    error=np.array(
        [
            -0.00178001105222577714,
            -0.0008164344596567469,
            0.007880878010261995,
            -0.1447110071732629,
            0.5823571654525552,
            -0.45808210592918697,
            0.015151515151515152,
        ]
    ),
    dense=np.array(
        [
            [1.0, -2.763706197274826, 2.9132554618219126, -1.0530884977290216],
            [0.0, 0.13169999999999998, -0.2234, 0.1017],
            [0.0, 3.9302962368947516, -5.941033872131505, 2.490627285651253],
            [0.0, -12.411077166933676, 30.33818863028232, -16.548102889244902],
            [0.0, 37.50931341651104, -88.1789048947664, 47.37952196281928],
            [0.0, -27.896526289197286, 65.09189467479366, -34.87065786149661],
            [0.0, 1.5, -4.0, 2.5],
        ]
    ),
)
"""Tsitouras 5(4) with its free fourth-order interpolant: C. Tsitouras, Comput. Math. Appl. 62 (2011) 770-775."""

TABLEAUS = {tableau.name: tableau for tableau in (TSIT5,)}
"""The explicit methods by name. One that stands here is a method of `simulate` and `ensemble`, on every engine."""

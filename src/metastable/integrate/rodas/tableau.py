"""Coefficients of Rodas5P in the form without matrix products.

With gamma the diagonal coefficient, an autonomous system y' = f(y) and its Jacobian J at the start of the step, the stages are

    (I/(h gamma) - J) u_i = f(y + sum_j A_ij u_j) + (1/h) sum_j C_ij u_j,          i = 1..8,

the new state is `y + sum_i WEIGHTS_i u_i`, the error estimate is `u_8` and the dense output, with K_p = sum_i DENSE_pi u_i and
u in [0, 1] (y1 the new state minus y),

    y(u) = y + u (y1 + (1 - u)(K_1 + u (K_2 + u K_3))).

Order 5(4), A-stable and stiffly accurate, dense output of order 4: G. Steinebach, "Construction of Rosenbrock-Wanner method
Rodas5P and numerical benchmarks within the Julia Differential Equations package", BIT Numer. Math. 63:27 (2023). Form of the
stages: E. Hairer and G. Wanner, Solving Ordinary Differential Equations II, section IV.7.
"""

from __future__ import annotations

import numpy as np

STAGES = 8
GAMMA = 0.21193756319429014


def _table(text: str, shape: tuple[int, int] = (STAGES, STAGES)) -> np.ndarray:
    """Rows of numbers, one a line unless it ends in a comma; what is not written is zero."""
    matrix = np.zeros(shape)
    rows = [[float(number) for number in row.split()] for row in text.replace(",\n", " ").strip().splitlines()]
    for i, row in enumerate(rows, start=shape[0] - len(rows)):
        matrix[i, : len(row)] = row
    return matrix


A = _table(
    """
    3.0
    2.849394379747939 0.45842242204463923
    -6.954028509809101 2.489845061869568 -10.358996098473584
    2.8029986275628964 0.5072464736228206 -0.3988312541770524 -0.04721187230404641
    -7.502846399306121 2.561846144803919 -11.627539656261098 -0.18268767659942256 0.030198172008377946
    -7.502846399306121 2.561846144803919 -11.627539656261098 -0.18268767659942256 0.030198172008377946,
        1.0
    -7.502846399306121 2.561846144803919 -11.627539656261098 -0.18268767659942256 0.030198172008377946,
        1.0 1.0
    """
)

C = _table(
    """
    -14.155112264123755
    -17.97296035885952 -2.859693295451294
    147.12150275711716 -1.41221402718213 71.68940251302358
    165.43517024871676 -0.4592823456491126 42.90938336958603 -5.961986721573306
    24.854864614690072 -3.0009227002832186 47.4931110020768 5.5814197821558125 -0.6610691825249471
    30.91273214028599 -3.1208243349937974 77.79954646070892 34.28646028294783 -19.097331116725623,
        -28.087943162872662
    37.80277123390563 -3.2571969029072276 112.26918849496327 66.9347231244047 -40.06618937091002,
        -54.66780262877968 -9.48861652309627
    """
)

WEIGHTS = np.array([*A[7, :7], 1.0])

DENSE = _table(
    """
    25.948786856663858 -2.5579724845846235 10.433815404888879 -2.3679251022685204 0.524948541321073,
        1.1241088310450404 0.4272876194431874 -0.17202221070155493
    -9.91568850695171 -0.9689944594115154 3.0438037242978453 -24.495224566215796 20.176138334709044,
        15.98066361424651 -6.789040303419874 -6.710236069923372
    11.419903575922262 2.8879645146136994 72.92137995996029 80.12511834622643 -52.072871366152654,
        -59.78993625266729 -0.15582684282751913 4.883087185713722
    """,
    (3, STAGES),
)

POLYNOMIAL = np.array([WEIGHTS + DENSE[0], DENSE[1] - DENSE[0], DENSE[2] - DENSE[1], -DENSE[2]])
"""Rows: the coefficients of u, u^2, u^3, u^4 of the dense output, as combinations of the stages."""

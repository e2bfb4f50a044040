"""Numbers of the exponential and of the sine that compiled loops use, on the CPU (`cpu.fastmath`) and on the GPU (`cuda.intrinsics`).

Polynomials are minimax (Remez exchange in 50 digits).
"""

from __future__ import annotations

LOG2E = 1.4426950408889634
"""log2(e): exp(x) = exp2(LOG2E * x)."""

MAGIC = 6755399441055744.0
"""1.5 * 2^52: adding it rounds to the nearest integer, which then sits in the low bits of the mantissa."""

# 2^f = 1 + f * sum_i EXP2[i] f^i on [-1/2, 1/2], relative error 3.0e-16; the constant term is exactly 1, so that exp2(0) = 1 and a
# token weighs itself exactly.
EXP2 = (
    0.69314718055995161607,
    0.24022650695910472143,
    0.0555041086643465926,
    0.0096181291073807209627,
    0.0013333558246479465083,
    0.00015403530800809789214,
    0.000015252647748364982741,
    1.3215235638319614064e-6,
    1.0210506341142341417e-7,
    7.1117582158443209683e-9,
)
# sin(r) = r + r z (sum_i SIN[i] z^i) and cos(r) = 1 - z/2 + z^2 (sum_i COS[i] z^i) with z = r^2 on |r| <= pi/4; errors 3.4e-18 and
# 4.7e-20, of the short ones for single precision 1e-8 and 8e-10.
SIN = (
    -0.16666666666666632067,
    0.0083333333333224242749,
    -0.00019841269829816773605,
    2.7557313695173797478e-6,
    -2.5050758646146465849e-8,
    1.5896827566397798952e-10,
)
COS = (
    0.041666666666666599555,
    -0.0013888888888874138527,
    0.000024801587289491759005,
    -2.7557314355221535258e-7,
    2.0875723681563456833e-9,
    -1.1359669712495382506e-11,
)
SIN_SINGLE = (-0.1666666466231438, 0.008332748270629749, -0.00019587890880412386)
COS_SINGLE = (0.04166666465950221, -0.0013888303035894866, 2.4547942085071572e-05)

TWO_OVER_PI = 0.63661977236758134308
# pi/2 in three parts of 33 bits (Cody and Waite): k * part is exact for |k| < 2^20, so angles up to about 1e6 are reduced
# to full accuracy.
HALF_PI = (1.57079632673412561417e00, 6.07710050630396597660e-11, 2.02226624879595063154e-21)

"""Formulas in plain text become readable HTML, and nothing else changes."""

import pytest

from metastable.reproduce.typeset import typeset


@pytest.mark.parametrize(
    ("plain", "expected"),
    [
        ("c beta^(-1/2)", "c β<sup>−1/2</sup>"),
        ("beta^((d-1)/2)", "β<sup>(d−1)/2</sup>"),
        ("x_1(0)", "x<sub>1</sub>(0)"),
        ("lambda_max > 0", "λ<sub>max</sub> &gt; 0"),
        ("10^56", "10<sup>56</sup>"),
        ("at t = 1e+09", "at t = 10<sup>9</sup>"),
        ("error 6.9e-12 rad", "error 6.9 × 10<sup>−12</sup> rad"),
        ("sum_{j<k} exp(beta)", "sum<sub>j&lt;k</sub> exp(β)"),
        ("Gamma(d/2) kappa_#, gamma < 1/(1 - rho)", "Γ(d/2) κ<sub>#</sub>, γ &lt; 1/(1 - ρ)"),
        ("beta_* and e^beta", "β<sub>*</sub> and e<sup>β</sup>"),
        ("e^(-2 e^beta t)", "e<sup>−2 e<sup>β</sup> t</sup>"),
        ("the alphabet is not Greek", "the alphabet is not Greek"),
        ("<b>bold</b>", "&lt;b&gt;bold&lt;/b&gt;"),
        ("open ^(bracket", "open ^(bracket"),
        ("18 of 20 (95 % interval)", "18 of 20 (95 % interval)"),
    ],
)
def test_typeset(plain, expected):
    assert typeset(plain) == expected

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
        ("sum_{j<k} exp(beta)", "∑<sub>j&lt;k</sub> exp(β)"),
        ("Gamma(d/2) kappa_#, gamma < 1/(1 - rho)", "Γ(d/2) κ<sub>#</sub>, γ &lt; 1/(1 − ρ)"),
        ("beta_* and e^beta", "β<sub>*</sub> and e<sup>β</sup>"),
        ("e^(-2 e^beta t)", "e<sup>−2 e<sup>β</sup> t</sup>"),
        ("psi_{a_m t}(Y)", "ψ<sub>a<sub>m</sub> t</sub>(Y)"),
        ("n [exp(a_m t W)]_{ns}", "n [exp(a<sub>m</sub> t W)]<sub>ns</sub>"),
        ("e^(-pi^2 m^2/(2 M^2))", "e<sup>−π<sup>2</sup> m<sup>2</sup>/(2 M<sup>2</sup>)</sup>"),
        ("1/sigma(B_delta)", "1/σ(B<sub>δ</sub>)"),
        ("theta_j' = -sum_{k<j} w_jk", "θ<sub>j</sub>′ = −∑<sub>k&lt;j</sub> w<sub>jk</sub>"),
        ("sum exp(beta <x_i, x_j>), dx_i/dt", "∑ exp(β ⟨x<sub>i</sub>, x<sub>j</sub>⟩), dx<sub>i</sub>/dt"),
        ("beta >= -0.16, it's -1e-9", "β ≥ −0.16, it&#x27;s −10<sup>−9</sup>"),
        ("0.0e+00 and 3.0e+00 rad", "0 and 3 rad"),
        ("ξ or -ξ, exp(-ct), `classify`", "ξ or −ξ, exp(−ct), <code>classify</code>"),
        ("file_name, one-sided, n = 3-5", "file_name, one-sided, n = 3-5"),
        ("the alphabet is not Greek", "the alphabet is not Greek"),
        ("<b>bold</b>", "&lt;b&gt;bold&lt;/b&gt;"),
        ("open ^(bracket", "open ^(bracket"),
        ("18 of 20 (95 % interval)", "18 of 20 (95 % interval)"),
    ],
)
def test_typeset(plain, expected):
    assert typeset(plain) == expected

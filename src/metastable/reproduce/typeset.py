"""Plain formulas of findings ("beta^(-1/2)", "x_1(0)", "1e-09") as HTML with Greek letters, indices and powers."""

from __future__ import annotations

import html
import re

GREEK = {
    "alpha": "α",
    "beta": "β",
    "gamma": "γ",
    "Gamma": "Γ",
    "delta": "δ",
    "sigma": "σ",
    "kappa": "κ",
    "lambda": "λ",
    "theta": "θ",
    "phi": "φ",
    "dphi": "dφ",
    "tau": "τ",
    "eps": "ε",
    "mu": "μ",
    "psi": "ψ",
    "rho": "ρ",
    "xi": "ξ",
    "pi": "π",
}
_WORD = re.compile(r"(?<![A-Za-z])(" + "|".join(sorted(GREEK, key=len, reverse=True)) + r")(?![A-Za-z])")
_INDEX = re.compile(r"([A-Za-zαβγΓδσκλθφτεμξπψρ])_(\{[^}]*\}|[A-Za-z0-9]+|[#*])")
_POWER = re.compile(r"\^(-?[0-9.]+[0-9]|-?[0-9]|-?[A-Za-zαβγΓδσκλθφτεμξπψρ])")
_EXPONENT = re.compile(r"(?<![A-Za-z0-9.])([0-9.]+)e([+-]?)0*([0-9]+)(?![A-Za-z0-9])")


def typeset(text: str) -> str:
    """`text`, escaped, with formulas typeset. Anything that is no formula stays as it is."""
    shown = _EXPONENT.sub(_scientific, html.escape(text))
    shown = _WORD.sub(lambda match: GREEK[match.group(1)], shown)
    shown = shown.replace("sqrt(", "√(")
    shown = _INDEX.sub(lambda match: f"{match.group(1)}<sub>{match.group(2).strip('{}')}</sub>", shown)
    return _POWER.sub(lambda match: f"<sup>{_minus(match.group(1))}</sup>", _grouped_powers(shown))


def _minus(text: str) -> str:
    return text.replace("-", "−")


def _scientific(match: re.Match[str]) -> str:
    mantissa, sign, exponent = match.groups()
    power = f"10^{'-' if sign == '-' else ''}{exponent}"
    return power if mantissa in ("1", "1.0") else f"{mantissa} × {power}"


def _grouped_powers(text: str) -> str:
    """`^(...)` with balanced parentheses as a superscript."""
    while (place := text.find("^(")) >= 0:
        depth, end = 0, -1
        for index in range(place + 1, len(text)):
            depth += {"(": 1, ")": -1}.get(text[index], 0)
            if depth == 0:
                end = index
                break
        if end < 0:
            return text
        text = f"{text[:place]}<sup>{_minus(text[place + 2 : end])}</sup>{text[end + 1 :]}"
    return text


def format_seconds(seconds: float) -> str:
    """`0.4 s`, `12 s`, `2 min 05 s`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"

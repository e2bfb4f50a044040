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
_LETTERS = "".join(sorted({letter for letter in GREEK.values() if len(letter) == 1}))
_WORD = re.compile(r"(?<![A-Za-z])(" + "|".join(sorted(GREEK, key=len, reverse=True)) + r")(?![A-Za-z])")
_EXPONENT = re.compile(r"(?<![A-Za-z0-9.])([0-9]+(?:\.[0-9]+)?)e([+-]?)0*([0-9]+)(?![A-Za-z0-9])")
_MINUS = re.compile(rf"(?<![^\s(\[=,])-(?=[\d.∞{_LETTERS}])|(?<=\S )-(?= \S)|(?<== )-(?=\S)|(?<=\()-(?=\S)")
_CODE = re.compile(r"`([^`]+)`")
_BRACKETS = re.compile(r"&lt;([^&;=]*,[^&;=]*)&gt;")
_PRIME = re.compile(rf"(?<=[{_LETTERS}])&#x27;|(?<=</sub>)&#x27;")
# What an index may hang on: one letter (no word, as in file_name), a differential, or the end of brackets.
_BASE = re.compile(rf"(?:(?<![A-Za-z])(?:d?[A-Za-z]|grad)|[{_LETTERS}]|∑|[)\]])$")
# What may be lowered or raised without brackets.
_LOW = re.compile(rf"[A-Za-z0-9{_LETTERS}]+|[#*]")
_HIGH = re.compile(rf"-?[0-9]+(?:\.[0-9]+)?|-?[A-Za-z{_LETTERS}](?![A-Za-z])")
_CLOSING = {"(": ")", "{": "}"}


def typeset(text: str) -> str:
    """`text`, escaped, with formulas typeset. Anything that is no formula stays as it is."""
    shown = _CODE.sub(r"<code>\1</code>", html.escape(text))
    shown = _EXPONENT.sub(_scientific, shown)
    shown = _WORD.sub(lambda match: GREEK[match.group(1)], shown)
    shown = re.sub(r"\bsum(?=[_(]| exp\()", "∑", shown.replace("sqrt(", "√("))
    shown = _BRACKETS.sub(r"⟨\1⟩", shown).replace("&gt;=", "≥").replace("&lt;=", "≤")
    return _PRIME.sub("′", _scripts(_MINUS.sub("−", shown)))


def _scientific(match: re.Match[str]) -> str:
    mantissa, sign, exponent = match.groups()
    if exponent == "0" or float(mantissa) == 0:
        return f"{float(mantissa):g}"
    power = f"10^{'-' if sign == '-' else ''}{exponent}"
    return power if mantissa in ("1", "1.0") else f"{mantissa} × {power}"


def _scripts(text: str) -> str:
    """`a_k`, `a_{...}`, `a^k`, `a^(...)` as indices and powers, also inside one another; a bracket that never closes stays text."""
    shown, place = [], 0
    while place < len(text):
        sign = text[place]
        held = _held(text, place) if sign in "_^" else None
        if held is None:
            shown.append(sign)
            place += 1
            continue
        inner, place = held
        tag = "sub" if sign == "_" else "sup"
        shown.append(f"<{tag}>{_scripts(inner.replace('-', '−'))}</{tag}>")
    return "".join(shown)


def _held(text: str, place: int) -> tuple[str, int] | None:
    """What is raised or lowered by the sign at `place`, and where it ends (None: the sign is no index and no power)."""
    before, first = text[:place], text[place + 1 : place + 2]
    if text[place] == "_" and not _BASE.search(before):
        return None
    if first in _CLOSING:
        end = _closing(text, place + 1)
        return None if end is None else (text[place + 2 : end], end + 1)
    found = (_LOW if text[place] == "_" else _HIGH).match(text, place + 1)
    return None if found is None else (found.group(), found.end())


def _closing(text: str, place: int) -> int | None:
    """Where the bracket that opens at `place` closes."""
    depth = 0
    for index in range(place, len(text)):
        depth += {text[place]: 1, _CLOSING[text[place]]: -1}.get(text[index], 0)
        if depth == 0:
            return index
    return None


def format_seconds(seconds: float) -> str:
    """`0.4 s`, `12 s`, `2 min 05 s`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"

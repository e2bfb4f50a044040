"""How a variant declares itself: its kind, and its fields with label, symbol, range and a suggestion.

A norm, mask, kind of weights or bias is one frozen dataclass below the abstract base of its family. What stands in the class is
all that the rest of the house knows about it: engines compare kinds (`metastable.model.refusals`), stores and TOML files
write them (`serialize`), the command line, sweeps and the explorer build their options from the fields.

A class that says nothing about its `kind` gets one from its own name, never its parent's: a new variant is never taken for an
old one.
"""

from __future__ import annotations

from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from typing import Any, ClassVar

from metastable import _checks
from metastable.errors import ModelError

REGISTRY: dict[str, dict[str, type[Declared]]] = {}
"""Family ("norm", "mask", "weights", "bias") -> kind -> class, in the order of declaration."""

KEY = "parameter"
WORDS = "words"


@dataclass(frozen=True)
class Parameter:
    """What a field means and which values it may have.

    Fields
    ------
    label : whole words, for forms and help.
    symbol : as in the paper, in plain text.
    suggestion : what a form offers first (a constructor may still ask for a value).
    minimum, maximum : bounds, None for none; `strict` leaves the bounds themselves out.
    whole : a whole number.
    """

    label: str
    symbol: str = ""
    suggestion: float | None = None
    minimum: float | None = None
    maximum: float | None = None
    strict: bool = False
    whole: bool = False

    def check(self, value: Any, name: str) -> float:
        """`value` as a number of this field, or `ModelError`."""
        if self.whole:
            low = 0 if self.minimum is None else int(self.minimum)
            high = None if self.maximum is None else int(self.maximum)
            return _checks.count(value, name, low, high, error=ModelError)
        return _checks.number(value, name, self.minimum, self.maximum, strict=self.strict, error=ModelError)

    def read(self, text: str) -> float:
        """The number that `text` (of a flag or a form) stands for; ValueError if it is none."""
        return int(text) if self.whole else float(text)


def parameter(label: str, *, default: Any = MISSING, **rest: Any) -> Any:
    """A dataclass field that is a number described by `Parameter(label, **rest)`."""
    return field(default=default, metadata={KEY: Parameter(label, **rest)})


def parameters(cls: Any) -> dict[str, Parameter]:
    """Name -> `Parameter` of the declared fields of a class (or an object), in order."""
    return {item.name: item.metadata[KEY] for item in fields(cls) if KEY in item.metadata}


def optional(words: str) -> Any:
    """A dataclass field that is None unless the model has this part; `words` is how the part is called behind "has no"."""
    return field(default=None, metadata={WORDS: words})


def optionals(cls: Any) -> dict[str, str]:
    """Name -> words of the optional parts of a class, in order."""
    return {item.name: item.metadata[WORDS] for item in fields(cls) if WORDS in item.metadata}


class Declared:
    """Base of the families. `class Norm(Declared, family="norm")` opens one; every class below it is a kind of it."""

    family: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    label: ClassVar[str] = ""
    """What people call it, for forms; the name of the class where nothing else is said."""

    def __init_subclass__(cls, family: str | None = None, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        if family is not None:
            cls.family = family
            REGISTRY.setdefault(family, {})
            return
        if not vars(cls).get("kind"):
            cls.kind = f"{cls.__module__}.{cls.__qualname__}"
        if "label" not in vars(cls):
            cls.label = cls.__name__
        known = REGISTRY[cls.family].get(cls.kind)
        # The same name again is the same class made anew (a cell run twice, a dataclass with slots).
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ModelError(
                f"{cls.__qualname__}: the {cls.family} kind {cls.kind!r} is taken by {known.__qualname__}; choose another"
            )
        REGISTRY[cls.family][cls.kind] = cls

    def __post_init__(self) -> None:
        for name, declared in parameters(self).items():
            value = declared.check(getattr(self, name), f"{type(self).__name__}.{name}")
            object.__setattr__(self, name, value)


def kinds(family: str) -> dict[str, type[Any]]:
    """Kind -> class of a family."""
    return REGISTRY[family]


def build(family: str, kind: str, **values: Any) -> Any:
    """The object of a kind, for example `build("mask", "window", width=8)`."""
    return REGISTRY[family][kind](**values)


def made_of_numbers(cls: Any) -> bool:
    """True when every field is a declared number or may be left out: such a kind can be written as a flag and offered by a form."""
    if not is_dataclass(cls):
        return False  # somebody's class without fields: nothing that a flag could say
    declared = parameters(cls)
    return all(item.name in declared or item.default is not MISSING for item in fields(cls))


def catalogue() -> dict[str, list[dict[str, Any]]]:
    """All families as plain values, for forms: kinds in order, each with `kind`, `label` and its `fields` (None where a form cannot
    make it, such as a matrix)."""
    return {
        family: [
            {
                "kind": kind,
                "label": cls.label,
                "fields": [{"name": name, **asdict(item)} for name, item in parameters(cls).items()]
                if made_of_numbers(cls)
                else None,
            }
            for kind, cls in known.items()
        ]
        for family, known in REGISTRY.items()
    }


def is_declared(value: Any, family: str) -> bool:
    """True for an object of a declared kind of the family (the base itself is none)."""
    base = type(value)
    return isinstance(value, Declared) and value.family == family and REGISTRY[family].get(value.kind) is base

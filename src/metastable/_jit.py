"""Numba's `njit`, with on-disk caches that notice every change of the package; and `part`, for what is compiled into its callers (with
the options `PART` also Numba's `overload` and `register_jitable`, for what Python calls as it is).

Numba ties cached machine code to the file that defines a function. Our functions inline or call (through addresses, with
structures that another file lays out) functions of other files, so code that was cached before one of those changed would be
wrong, or crash. Here a cache entry is tied to all compiled rooms of the package together.
"""

from __future__ import annotations

import gc
import operator
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
from llvmlite import binding
from numba import _dynfunc  # pyright: ignore[reportAttributeAccessIssue]
from numba.core import config, event
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.typed_passes import InlineOverloads, NativeLowering, NopythonRewrites
from numba.core.types import unliteral
from numba.core.typing.arraydecl import GetItemBuffer, SetItemBuffer
from numba.core.typing.templates import infer_global
from numba.core.untyped_passes import InlineClosureLikes, InlineInlinables, WithLifting

LANES_CHOSEN = int(os.environ.get("METASTABLE_LANES") or 0)
"""Width of vectors that was asked for (2, 4, 8, ...), 0: what fits the processor. Code of another width is not this code."""
ROOMS = ("kernels", "integrate", "analysis")
"""Folders of the package that hold compiled code."""


@cache
def source_stamp() -> tuple[int, int, int, int]:
    """(files, newest change in ns, total size, chosen width) of everything that compiled code is made of."""
    root = Path(__file__).parent
    rooms = [path for room in ROOMS for path in (root / room).rglob("*.py")]
    status = [path.stat() for path in (Path(__file__), *rooms)]
    return len(status), max(entry.st_mtime_ns for entry in status), sum(entry.st_size for entry in status), LANES_CHOSEN


def njit(function: Callable | None = None, **options: Any) -> Any:
    """`numba.njit`, stamped with `source_stamp`."""
    if function is None:
        return lambda inner: njit(inner, **options)
    dispatcher = numba.njit(**options)(function)
    # Not part of Numba's interface: where a version keeps its cache elsewhere, its own rule (one file) holds.
    store = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if store is not None and hasattr(store, "_source_stamp"):
        store._source_stamp = source_stamp()
        # Numba compares the version before it reads the rest, and the stamp after. The rest names our modules: read from the cache of a
        # release in which one of them had another name, it would not be out of date but an ImportError.
        store._version = (store._version, *source_stamp())
    return dispatcher


compile_listeners: list[Callable[[bool], None]] = []
"""Called with True when Numba begins to compile, with False when it is done (what it loads from its cache is no compilation)."""


class _Announcer(event.Listener):
    """Calls `compile_listeners`, once for a function and its parts; meanwhile nobody looks for garbage in cycles.

    Numba makes some million objects, most of which stay until it is done: looking through them took a tenth of its time.
    """

    depth = 0
    collecting = False

    def on_start(self, event: Any) -> None:
        self.depth += 1
        if self.depth == 1:
            self.collecting = gc.isenabled()
            gc.disable()
            self._tell(True)

    def on_end(self, event: Any) -> None:
        self.depth -= 1
        if self.depth == 0:
            if self.collecting:
                gc.enable()
            self._tell(False)

    def _tell(self, begins: bool) -> None:
        for listener in compile_listeners:
            listener(begins)


event.register("numba:compile", _Announcer())

_settings: Any = config

FIRST: dict[str, Any] = {"target": "cpu"}
"""Metadata of a meaning of an operator that Numba asks before its own, which hold for all targets and are some thirty."""

# Most of what compiled code does is to read and write entries of arrays, which Numba considers after those of texts, lists, ...: a
# twelfth of the time to compile.
for _operation, _meaning in ((operator.getitem, GetItemBuffer), (operator.setitem, SetItemBuffer)):
    _register: Any = infer_global(_operation)
    _register(type(_meaning.__name__, (_meaning,), {"metadata": FIRST}))


# ------------------------------------------------------------------------------------------------------ parts
#
# Numba turns every compiled function into optimised machine code on its own, and links it, optimised, into each of its callers, where
# it is optimised and translated again: a function four calls deep is done four times. A part is a function that only other
# compiled functions call. It is typed and lowered to LLVM's language once and handed to its callers as it is; only they become
# machine code. That halves the time to the first result.

KERNEL_LEVEL = 2
"""LLVM's level for parts and kernels. One more would copy every loop for every case that a field of the problem tells apart: four times
the code, a second more to compile, and no faster."""


class _PlainLibrary(JITCodeLibrary):
    """Code whose loops are left as they are written.

    Kernels state their vectors, and their other loops are short (over heads, components, ranges). What LLVM would do to these, a
    vectorised copy, an unrolled one and one for the rest of each, is three times the code and slower: a step of Rodas on the sphere
    took 1.15 times as long, and 1.3 seconds more to compile.
    """

    def _passes(self) -> Any:
        options = binding.create_pipeline_tuning_options(speed_level=min(int(_settings.OPT), KERNEL_LEVEL))
        options.loop_vectorization = options.slp_vectorization = False
        options.loop_interleaving = options.loop_unrolling = False
        return binding.create_pass_builder(self._codegen._tm, options)

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout
        builder = self._passes()
        manager = builder.getFunctionPassManager()
        for function in ll_module.functions:
            if not function.is_declaration:
                manager.run(function, builder)

    def _optimize_final_module(self) -> None:
        builder = self._passes()
        builder.getModulePassManager().run(self._final_module, builder)


class _PartLibrary(_PlainLibrary):
    """Code that waits for a caller: linked with what it calls, not optimised as a whole, not translated."""

    def finalize(self) -> None:
        self._raise_if_finalized()
        for library in dict.fromkeys(self._linking_libraries):
            if hasattr(self, "_reload_init"):  # not in Numba 0.61
                self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _PartLowering(NativeLowering):
    """Numba's last pass, with a `_PartLibrary` in place of machine code."""

    _name = "metastable_part_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = _PartLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        lowered = state["cr"]
        name = lowered.fndesc.qualname.split(".")[-1]
        # An entry that nobody may call: callers find the part by it.
        entry = _dynfunc.make_function(lowered.fndesc.lookup_module(), name, "", 0, lowered.env, (state.library,))
        state.targetctx.insert_user_function(entry, lowered.fndesc, [state.library])
        state["cr"] = lowered._replace(cfunc=entry)
        return True


UNUSED = (WithLifting, InlineClosureLikes, InlineInlinables, InlineOverloads, NopythonRewrites)
"""Passes for what parts and kernels do not have: `with`, closures, functions that Numba itself merges, expressions of whole arrays."""


class _Compiler(CompilerBase):
    """Numba's pipeline with another last pass."""

    lowering: type[NativeLowering]

    def define_pipelines(self) -> list[PassManager]:
        default = DefaultPassBuilder.define_nopython_pipeline(self.state)
        pipeline = PassManager(self.lowering._name)
        for step, description in default.passes:
            if step not in UNUSED:
                pipeline.add_pass(self.lowering if step is NativeLowering else step, description)
        pipeline.finalize()
        return [pipeline]


class _PartCompiler(_Compiler):
    """For parts."""

    lowering = _PartLowering


@register_pass(mutates_CFG=True, analysis_only=False)
class _KernelLowering(NativeLowering):
    """Numba's last pass, with a `_PlainLibrary`."""

    _name = "metastable_kernel_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = _PlainLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return super().run_pass(state)


class KernelCompiler(_Compiler):
    """For machine code of kernels, which count no references (Numba's own passes would join their counts)."""

    lowering = _KernelLowering


def _refuse(*arguments: Any, **named: Any) -> None:
    raise TypeError("this function is part of compiled functions and has no machine code of its own; call those")


PART: dict[str, Any] = {"pipeline_class": _PartCompiler, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""What Numba is told of parts."""


def part(function: Callable | None = None, **options: Any) -> Any:
    """`numba.njit` for functions that only other compiled functions call."""
    if function is None:
        return lambda inner: part(inner, **options)
    dispatcher: Any = numba.njit(**PART, **options)(function)
    # Numba takes the constants in a call for types of their own and would compile `f(x, 0)`, `f(x, 1)` and `f(x, i)` one by one.
    find = dispatcher.get_call_template
    dispatcher.get_call_template = lambda arguments, named: find(
        tuple(map(unliteral, arguments)), {name: unliteral(kind) for name, kind in named.items()}
    )
    # A call from Python finds nothing to run: what is compiled is not entered into the table that such calls use.
    dispatcher._insert = lambda *arguments, **named: None
    dispatcher._compile_for_args = _refuse
    return dispatcher

"""Records by reference in compiled code: a named tuple of arrays that functions pass on as one pointer.

Numba passes a named tuple by value: each array is seven words, taken apart and put together again at every call. The
compiled drivers own some eighty arrays, and passing them made up most of the time that compiling took. `reference`
stores a record in the frame of the entry and returns its address; attributes of the reference are those of the record.
The address is valid while the entry runs, and the caller of the entry owns the arrays.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from llvmlite.binding import parse_bitcode
from numba import types
from numba.core import cgutils
from numba.core.caching import Cache, CompileResultCacheImpl
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, CompileResult
from numba.core.imputils import impl_ret_borrowed, lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import intrinsic, models, register_model

TRIED = numba.__version__.startswith("0.68.")
"""Whether what follows of numba's internals was tried with this version; with others all is compiled as usual, and
slower: what functions have in common is then optimised again in each of them."""


class Reference(types.Type):  # type: ignore[misc]
    def __init__(self, record: Any) -> None:
        self.record = record
        super().__init__(name=f"Reference({record})")


register_model(Reference)(models.OpaqueModel)


@intrinsic  # type: ignore[untyped-decorator]
def reference(typingctx: Any, record: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(cgutils.alloca_once_value(builder, args[0]), cgutils.voidptr_t)

    return Reference(record)(record), codegen


@infer_getattr
class _Attributes(AttributeTemplate):  # type: ignore[misc]
    key = Reference

    def generic_resolve(self, owner: Reference, attribute: str) -> Any:
        if attribute not in owner.record.fields:
            return None
        kind = owner.record.types[owner.record.fields.index(attribute)]
        return Reference(kind) if isinstance(kind, types.BaseNamedTuple) else kind


@lower_getattr_generic(Reference)  # type: ignore[untyped-decorator]
def _attribute(context: Any, builder: Any, owner: Reference, value: Any, attribute: str) -> Any:
    index = owner.record.fields.index(attribute)
    address = builder.bitcast(value, context.get_value_type(owner.record).as_pointer())
    member = cgutils.gep_inbounds(builder, address, 0, index)
    kind = owner.record.types[index]
    if isinstance(kind, types.BaseNamedTuple):
        return builder.bitcast(member, cgutils.voidptr_t)
    return impl_ret_borrowed(context, builder, kind, _loaded(builder, member))


def _loaded(builder: Any, address: Any) -> Any:
    """The value at an address, piece by piece. No piece ever changes, so LLVM need not read it again after a write."""
    kind = address.type.pointee
    if isinstance(kind, ir.Aggregate):
        value = ir.Constant(kind, ir.Undefined)
        for i in range(len(kind)):
            value = builder.insert_value(value, _loaded(builder, cgutils.gep_inbounds(builder, address, 0, i)), i)
        return value
    value = builder.load(address)
    if TRIED:
        value.set_metadata("invariant.load", builder.module.add_metadata([]))
    return value


class _Environments:
    def set_env(self, name: str, environment: Any) -> None:
        """The library of the entry has them all."""


class _Part(JITCodeLibrary):  # type: ignore[misc]
    """Code that only compiled code calls: linked into it as it is, since the entry is optimised as a whole, once."""

    codegen = _Environments()

    def _optimize_final_module(self) -> None:
        """Left to the entry."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return 0

    def serialize_using_object_code(self) -> tuple[str, bytes]:
        return self.name, self._final_module.as_bitcode()

    @classmethod
    def restored(cls, codegen: Any, name: str, code: bytes) -> _Part:
        library = cls(codegen, name)
        library._final_module = parse_bitcode(code)
        library._finalize_final_module()
        return library


class _EntryBody(_Part):
    """It is not inlined: LLVM must not move reads of a record, which never changes, ahead of its making."""

    def _finalize_final_module(self) -> None:
        for function in self._final_module.functions:
            if not function.is_declaration and self.name in function.name:
                function.add_function_attribute("noinline")
        super()._finalize_final_module()


def _pipeline(library: Any) -> dict[str, Any]:
    """Options of `njit` for functions whose code goes to such a library."""

    class Pipeline(Compiler):  # type: ignore[misc]
        def define_pipelines(self) -> Any:
            if self.state.library is None:
                self.state.library = library(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
            return super().define_pipelines()

    return {"pipeline_class": Pipeline} if TRIED else {}


PART, ENTRY_BODY = _pipeline(_Part), _pipeline(_EntryBody)


class _PartOnDisk(CompileResultCacheImpl):  # type: ignore[misc]
    def rebuild(self, target_context: Any, payload: Any) -> Any:
        (name, code), *rest = payload
        restore = _Restoring(target_context, _Part.restored(target_context.codegen(), name, code))
        return CompileResult._rebuild(restore, None, *rest)


class _Restoring:
    """A target context that hands out a library that exists already."""

    def __init__(self, context: Any, library: _Part) -> None:
        self._context, self._library = context, library

    def codegen(self) -> _Restoring:
        return self

    def unserialize_library(self, state: None) -> _Part:
        return self._library

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


LOADED: set[tuple[str, str]] = set()
"""Modules and names of functions that were found on disk, so that neither they nor what they call is compiled."""


class _PartCache(Cache):  # type: ignore[misc]
    _impl_class = _PartOnDisk

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        found = super().load_overload(signature, target_context)
        if found is not None:
            LOADED.add((self._py_func.__module__, self._py_func.__name__))
        return found


def kept(dispatcher: Any) -> Any:
    """Keep a function on disk as soon as it is compiled, so that an interrupted compilation goes on from there.

    It is compiled once for all numbers: numba would compile it again where a caller passes a constant.
    """
    if TRIED:
        dispatcher._cache = _PartCache(dispatcher.py_func)
        template = dispatcher.get_call_template
        dispatcher.get_call_template = lambda arguments, named: template(
            [types.unliteral(one) for one in arguments], {name: types.unliteral(one) for name, one in named.items()}
        )
    return dispatcher

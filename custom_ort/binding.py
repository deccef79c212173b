"""Caches in place: one memory bound as cache input and cache output.

ONNX Runtime hands our operators the memory that is bound. When a cache's input and output are one, an operator writes
its few new rows and nothing else: a decode step costs the same for a cache of 1 MB and of 1 GB.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from custom_ort.library import runtime
from custom_ort.sessions import check_array, check_feeds, refused
from custom_ort.values import element_type, from_ortvalue
from ir_ops.dtypes import Array
from ir_ops.errors import BadInput


class Binding:
    """A session with all inputs bound, some outputs sharing an input's memory. Made by :func:`bind`.

    Attributes:
        session: the session that runs.
    """

    def __init__(self, session: Any, feeds: Mapping[str, Array], aliases: Mapping[str, str]) -> None:
        runtime()
        self.session = session
        self._inputs = {entry.name: entry for entry in session.get_inputs()}
        self._declared = {entry.name: entry for entry in session.get_outputs()}
        self._outputs = list(self._declared)
        self._aliases = dict(aliases)
        self._arrays: dict[str, Array] = {}  # onnxruntime keeps pointers only: the arrays must live here
        self._io = session.io_binding()
        self._check_aliases(feeds)
        check_feeds(session, feeds)
        # onnxruntime gives outputs back in the order in which they were first bound, not in the model's.
        for name in self._outputs:
            self._io.bind_output(name, "cpu")
        self._free = [name for name in self._outputs if name not in self._aliases.values()]
        self._stale = False
        for name, array in feeds.items():
            self[name] = array

    def _check_aliases(self, feeds: Mapping[str, Array]) -> None:
        taken: set[str] = set()
        for name, output in self._aliases.items():
            if name not in self._inputs or name not in feeds:
                raise BadInput("an alias names no input", found=name, wanted=", ".join(self._inputs))
            if output not in self._outputs or output in taken:
                free = [entry for entry in self._outputs if entry not in taken]
                raise BadInput("an alias names no free output", where=name, found=output, wanted=", ".join(free))
            taken.add(output)

    def __setitem__(self, name: str, array: Array) -> None:
        """Binds another array to one input; all others stay bound.

        Raises:
            BadInput: no such input; another element type or shape; or an aliased array that cannot be written in place
                (read-only, or not C-contiguous).
        """
        if name not in self._inputs:
            raise BadInput("the model has no such input", found=name, wanted=", ".join(self._inputs))
        array = np.asarray(array)
        check_array(name, array, self._inputs[name])
        output = self._aliases.get(name)
        if output is None:
            array = np.ascontiguousarray(array).reshape(array.shape)
        elif not (array.flags.c_contiguous and array.flags.writeable):
            raise BadInput("this array cannot be written in place", where=name, wanted="a writeable C-contiguous array")
        else:
            check_array(f"{name} as {output}", array, self._declared[output])
        number, shape = element_type(array).onnx, list(array.shape)
        self._io.bind_input(name, "cpu", 0, number, shape, array.ctypes.data)
        if output is not None:
            self._io.bind_output(output, "cpu", 0, number, shape, array.ctypes.data)
        self._arrays[name] = array
        self._stale = True

    def __getitem__(self, name: str) -> Array:
        """The array bound to an input: for an alias the cache as the last run left it."""
        return self._arrays[name]

    def run(self) -> dict[str, Array]:
        """Runs once. Returns output name -> array; an aliased output is the caller's own, now changed, array.

        Raises:
            BadInput: an operator refuses the inputs; aliased arrays are then unchanged by that operator.
        """
        self.step()
        values = dict(zip(self._outputs, self._io.get_outputs(), strict=True))
        sources = {output: name for name, output in self._aliases.items()}
        return {
            name: self._arrays[sources[name]] if name in sources else from_ortvalue(value)
            for name, value in values.items()
        }

    def step(self) -> None:
        """Runs once without fetching outputs.

        Raises:
            BadInput: as :meth:`run`.
        """
        if self._stale:  # the last run's outputs stay bound with their shapes, which other inputs may change
            for name in self._free:
                self._io.bind_output(name, "cpu")
            self._stale = False
        try:
            self.session.run_with_iobinding(self._io)
        except Exception as error:
            raise refused(error) from None


def bind(session: Any, feeds: Mapping[str, Array], aliases: Mapping[str, str] | None = None) -> Binding:
    """Binds a session's inputs to arrays, and the outputs that ``aliases`` names to the memory of their input.

        binding = bind(session, feeds, aliases={"k_cache": "k_cache_out", "ckv_cache": "ckv_cache_out"})
        binding.run()               # feeds["k_cache"] itself now holds the new rows
        binding["kv"] = next_token  # rebind what changes, keep the rest
        binding.run()

    No array is copied: the arrays of ``feeds`` are used where they are, and THE ARRAYS OF ALIASED INPUTS CHANGE.
    Inputs that are not C-contiguous are the exception: they are copied, and refused where an alias would need them.

    Args:
        session: from :func:`custom_ort.session`.
        feeds: every input of the model.
        aliases: input name -> name of the output that takes its memory.

    Raises:
        BadInput: unknown or missing names, other element types or shapes, an array that cannot be written in place.
    """
    return Binding(session, feeds, aliases or {})

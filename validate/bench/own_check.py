"""What a user's kernel does is looked at closely: its result, row by row, and the arguments that it was given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perfmodel.base.text import printable
from perfmodel.validate.bench.case import Case, Tensor, WrongResult, clone, relative_error
from perfmodel.validate.bench.machine import import_torch
from perfmodel.validate.bench.own_calls import Operands
from perfmodel.validate.bench.own_ops import OwnOp

#: A single row may be off by so many times what a whole result may be.
ROW_FACTOR = 8.0


def line_of(error: BaseException) -> str:
    """Type and first line of what was raised."""
    said = str(error).strip()
    return f"{type(error).__name__}: {printable(said.splitlines()[0] if said else '', 300)}"


def guarded(call: Callable[..., Any], case: str, source: str) -> Callable[[Operands], Tensor]:
    """A user's function as a case runs it: whatever it raises, SystemExit included, is a failure of the kernel.

    Raises
    ------
    WrongResult
        By the function that is returned.
    """
    tensor = import_torch().Tensor

    def run(x: Operands) -> Tensor:
        try:
            result = call(*x.args)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise WrongResult(f"{case}: {source} raises {line_of(error)}") from error
        if isinstance(result, tuple | list) and result:
            result = result[0]
        if not isinstance(result, tensor):
            raise WrongResult(f"{case}: {source} returns a {type(result).__name__}; it must return a tensor")
        return result

    return run


class OwnProof:
    """Looks at a user's kernel on one shape: at many calls before timing, and at as many after it.

    Attributes
    ----------
    least, most, share
        See ``measure.Proof``.
    """

    least, most, share = 6, 64, 0.2

    def __init__(self, case: Case, own: OwnOp, sizes: Mapping[str, int]) -> None:
        self.case, self.own, self.sizes = case, own, sizes
        self._before: Operands | None = None
        self._theirs: Tensor | None = None

    def begin(self, inputs: Operands) -> None:
        """Call the kernel once and look at all that it did.

        Raises
        ------
        WrongResult
            When it raises, gives something else than the tensor asked for, changes what it was given, leaves out a
            number, or differs from the library by more than rounding, in all or in single rows.
        """
        self._before = clone(inputs)
        try:
            self._theirs = self.own.theirs(inputs)
        except Exception:  # the library does not take this shape: a sample in float64 is compared instead
            self._theirs = None
        self.judge(inputs, self.case.run(inputs))

    def judge(self, inputs: Operands, result: Tensor) -> None:
        """Look at the result of a call on the first inputs, or on a copy of them; raises WrongResult."""
        asked_for(self.case.name, self.case.source, self.own, self.sizes, self.case.fmt, result)
        _finite(self.case, result)
        self._unchanged(inputs)
        _compared(self.case, self.own, inputs, result, self._theirs)

    def close(self, sets: Sequence[Operands]) -> None:
        """See that no set of buffers was changed, and call the kernel on other numbers in the memory of the last one:
        one that kept a result instead of working it out is wrong there; raises WrongResult."""
        for one in sets:
            self._unchanged(one)
        _overwrite(sets[-1], self.case.make())
        OwnProof(self.case, self.own, self.sizes).begin(sets[-1])

    def _unchanged(self, inputs: Operands) -> None:
        torch, case = import_torch(), self.case
        assert self._before is not None
        for number, (x, was) in enumerate(zip(inputs.args, self._before.args, strict=True), 1):
            if not torch.equal(_bits(x), _bits(was)):
                raise WrongResult(
                    f"{case.name}: {case.source} changes its argument {number}; it must leave it as it is"
                )


def _overwrite(old: Operands, new: Operands) -> None:
    for x, y in zip((*old.args, *old.more), (*new.args, *new.more), strict=True):
        x.copy_(y)


def inspect(case: Case, own: OwnOp, sizes: Mapping[str, int]) -> None:
    """Draw operands and look at one call; raises WrongResult."""
    with import_torch().inference_mode():
        OwnProof(case, own, sizes).begin(case.make())


def _bits(x: Tensor) -> Tensor:
    torch = import_torch()
    return x.view(torch.uint8) if x.dtype.itemsize == 1 else x


def asked_for(case: str, source: str, own: OwnOp, sizes: Mapping[str, int], fmt: str, result: Tensor) -> None:
    """Refuse a result of another shape or type than the operation's; raises WrongResult that has both."""
    shape, kind = own.result_shape(sizes), own.result_type(fmt)
    if tuple(result.shape) != shape or result.dtype != kind:
        got = f"a tensor of shape {list(result.shape)} and type {result.dtype}"
        wanted = f"{own.gives}: here a tensor of shape {list(shape)} and type {kind}"
        raise WrongResult(f"{case}: {source} returns {got}; it must return {wanted}")


def _finite(case: Case, result: Tensor) -> None:
    if not bool(import_torch().isfinite(result).all()):
        raise WrongResult(
            f"{case.name}: {case.source} gives numbers that are not finite, or does not write all of them"
        )


def _compared(case: Case, own: OwnOp, x: Operands, result: Tensor, theirs: Tensor | None) -> None:
    """Compare with the library, as a whole and row by row; a row counts at least as an average one."""
    if theirs is None:
        error = relative_error(*own.exact(x, result))
        if not error <= case.allowed:
            raise WrongResult(f"{_wrong(case, error)}; a wrong kernel is not timed")
        return
    error = relative_error(result, theirs)
    rows, right = (one.reshape(-1, one.shape[-1]).float() for one in (result, theirs))
    size = right.norm(dim=1)
    off = (rows - right).norm(dim=1) / size.clamp_min(max(float(size.mean()), 1e-30))
    wrong = int((off > ROW_FACTOR * case.allowed).sum())
    if error > 2 * case.allowed or wrong:
        worst = int(off.argmax())
        raise WrongResult(
            f"{_wrong(case, error)}, {wrong:,} of {len(off):,} rows are wrong, the worst is row {worst:,} "
            f"({float(off[worst]):.3g}); a wrong kernel is not timed"
        )


def _wrong(case: Case, error: float) -> str:
    most = f"{case.allowed:g} is the most that rounding makes"
    return f"{case.name}: {case.source} gives a wrong result: relative error {error:.3g} ({most})"

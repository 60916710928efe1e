"""Times of operators as kernels reach them: physics with few fitted parameters, one module an operator kind.

Each form is a pure function of a shape (``Num``: scalars or arrays that broadcast), named parameters in SI units, the
datasheet numbers of a chip and a few facts of the engine. It returns its parts in seconds, which add up to the time.
"""

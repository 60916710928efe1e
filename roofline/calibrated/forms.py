"""All forms by name, as the files of fitted parameters name them."""

from __future__ import annotations

from perfmodel.roofline.calibrated.decode import DECODE
from perfmodel.roofline.calibrated.experts import EXPERTS
from perfmodel.roofline.calibrated.form import Form
from perfmodel.roofline.calibrated.gemm import GEMM, QUANTIZED_GEMM
from perfmodel.roofline.calibrated.gemm_blocked import BLOCKED_GEMM
from perfmodel.roofline.calibrated.latent import MLA_CONTEXT, MLA_GENERATION
from perfmodel.roofline.calibrated.links import COLLECTIVE
from perfmodel.roofline.calibrated.prefill import PREFILL
from perfmodel.roofline.calibrated.simple import SIMPLE

#: Name -> form.
FORMS: dict[str, Form] = {
    form.name: form
    for form in (
        GEMM, QUANTIZED_GEMM, BLOCKED_GEMM, PREFILL, DECODE, MLA_CONTEXT, MLA_GENERATION, EXPERTS, COLLECTIVE, SIMPLE,
    )
}  # fmt: skip

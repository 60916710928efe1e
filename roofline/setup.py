"""A model on a GPU under a plan: what every question starts from."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.hwspecs.load import gpu as load_gpu
from perfmodel.hwspecs.load import system as load_system
from perfmodel.hwspecs.schema import Gpu, System
from perfmodel.modelspecs.formats import Format
from perfmodel.modelspecs.load import model as load_model
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.roofline.step import Plan, make_plan
from perfmodel.roofline.topology import Topology, place


@dataclass(frozen=True)
class Setup:
    """A checked combination of model, GPU, parallelism, formats and links."""

    model: ModelSpec
    gpu: Gpu
    plan: Plan
    topology: Topology
    system: System | None = None

    def words(self) -> str:
        """The settings in one line: ``4 x h100-sxm (TP 4, dgx-h100), weights bf16, KV cache bf16``."""
        plan = self.plan
        degrees = [f"{n.upper()} {v}" for n in ("tp", "pp", "ep", "dp") if (v := getattr(plan, n)) > 1]
        spread = f" ({', '.join([*degrees, self.topology.system])})" if degrees else ""
        return f"{plan.gpus} x {self.gpu.name}{spread}, weights {plan.weights.name}, KV cache {plan.kv.name}"


def setup(
    model: str | ModelSpec, gpu: str | Gpu, *, tp: int = 1, pp: int = 1, ep: int = 1, dp: int = 1,
    weights: str | Format | None = None, kv: str | Format = "bf16", system: str | System | None = None,
    dequantization: float | None = None,
) -> Setup:  # fmt: skip
    """Load and check a model on a GPU.

    Parameters
    ----------
    model : str or ModelSpec
        A built-in name, a Hugging Face id of a built-in, a YAML file, a ``config.json`` or its folder.
    gpu : str or Gpu
        A built-in name or alias, a YAML file, ``cpu`` or ``local``.
    tp, pp, ep, dp : int
        Tensor, pipeline, expert and data parallelism.
    weights, kv : str or Format
        Storage formats; the weights default to the checkpoint's own.
    system : str or System, optional
        How the GPUs are joined; defaults to the GPU's usual one.
    dequantization : float, optional
        Instructions a weight of a kernel that unpacks narrow weights; as ``dequantize.instructions`` says by default.

    Raises
    ------
    UnknownName, SpecError, UsageError
    """
    spec, device = load_model(model), load_gpu(gpu)
    plan = make_plan(spec, device, tp, pp, ep, dp, weights, kv, dequantization)
    name = system or (device.system if plan.gpus > 1 else None)
    joined = load_system(name) if name else None
    return Setup(spec, device, plan, place(plan, device, joined), joined)

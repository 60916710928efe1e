"""The command line: commands are imported when they run, errors become one line and an exit code."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import click

from perfmodel.base.errors import INTERRUPTED

#: name -> one line of help; the module ``perfmodel.commands.<name>`` is imported when it is called.
COMMANDS = {
    "list": "List GPUs, systems, models, formats, engines or speculation methods.",
    "params": "Parameters, active parameters and KV-cache bytes of a model.",
    "roofline": "Every operator of a model on the roofline of a GPU: table and picture.",
    "estimate": "TTFT, TPOT and throughput, with the operators behind them.",
    "explain": "The formula of an operator with its numbers filled in.",
    "memory": "What a model takes and holds on a GPU under an engine: terms, KV tokens, concurrency.",
    "speculate": "Whether speculative decoding pays, at which batch and draft length, and why.",
    "quantize": "Bytes of a model in a storage format, tensor by tensor, or of a weight file.",
    "calibrate": "Fit operator times to your own measurements.",
    "report": "One self-contained HTML page.",
    "validate": "Measure this machine beside predictions, or compare a table of measurements with them.",
    "claims": "What the source document says, what we compute, and the verdict.",
}


class LazyGroup(click.Group):
    """A group whose commands are modules, imported on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order in which they are met."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command; an unknown name fails with near matches."""
        if cmd_name not in COMMANDS:
            from difflib import get_close_matches

            near = get_close_matches(cmd_name, COMMANDS, n=2, cutoff=0.5)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise click.UsageError(f"no command {cmd_name[:80]!r}{hint}")
        command: click.Command = import_module(f"perfmodel.commands.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; what a user can mend is told in one line on stderr."""
        from perfmodel.base.errors import PerfmodelError

        try:
            return super().invoke(ctx)
        except PerfmodelError as error:
            click.echo(f"perfmodel: {error}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt as stopped:  # of what measures: with what it kept
            click.echo(f"perfmodel: {str(stopped) or 'interrupted'}", err=True)
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:  # `perfmodel ... | head`: the reader has gone, which is no error
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(0)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="perfmodel")
def main() -> None:
    """Model LLM inference: FLOPs, bytes, rooflines and times from model and hardware specs.

    MODEL is a built-in name, a Hugging Face id of a built-in, a YAML file, a config.json or its folder. GPU is a
    built-in name, a YAML file, 'cpu' (this processor) or 'local' (this machine's GPU). Start with:

        perfmodel roofline --gpu h100 --model llama3-70b -o roofline.png
    """

"""Sessions that need an environment of their own; everything else is `tools/check.sh`."""

import nox

nox.options.sessions = ["interpreter"]


@nox.session
@nox.parametrize("triton", ["3.6.0", "newest"])
def interpreter(session: nox.Session, triton: str) -> None:
    """Kernel tests in Triton's interpreter; the result is kept for `tools/kernels.py doc`."""
    session.install("-e", ".[test]")
    session.install(*(["--upgrade", "triton"] if triton == "newest" else [f"triton=={triton}"]))
    session.run("python", "-P", "tools/triton_versions.py", "-n", "2", *session.posargs)

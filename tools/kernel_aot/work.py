"""The processes that compile: each loads the case files, and is replaced if the compiler takes it down."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import ModuleType
from typing import Any

from kernel_cases.case import Case

from kernel_aot import figures
from kernel_aot.driver import recording
from kernel_aot.fingerprint import fingerprint
from perfmodel.kernels.table import Config

Task = tuple[str, str, Config | None]
"""A case file, and the name of a case in it; or the name of candidates, with one of their configurations."""
Result = dict[str, Any]

_modules: dict[str, ModuleType] = {}


def load(path: Path) -> ModuleType:
    """Import a case file, once a process."""
    if str(path) not in _modules:
        spec = importlib.util.spec_from_file_location(f"kernel_cases_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        _modules[str(path)] = module
    return _modules[str(path)]


def case_files(folder: Path) -> list[Path]:
    """The case files of a folder."""
    return [path for path in sorted(folder.glob("*.py")) if path.stem not in ("case", "__init__")]


def cases(path: Path) -> dict[str, Case]:
    """The cases of a file by name. Raises ValueError for two of one name."""
    listed: Sequence[Case] = load(path).CASES
    named = {case.name: case for case in listed}
    if len(named) < len(listed):
        names = [case.name for case in listed]
        raise ValueError(f"{path.name}: two cases are called {next(n for n in names if names.count(n) > 1)}")
    return named


def look(case: Case) -> Result:
    """What a case launches, without compiling: its key and the table rows it takes."""
    with recording(case.arch, compiled=False) as found:
        case.call()
    return {"key": fingerprint(found.launches, case.loop_weights), "rows": sorted(map(list, found.rows))}


def current(record: Result, seen: Result) -> bool:
    """Whether figures are kept of what is launched now, by the rows that are taken now."""
    return all(record[name] == seen[name] for name in ("key", "rows"))


def compile_case(case: Case) -> Result:
    """Compile a case and read its figures; `error` says why it does not compile."""
    with recording(case.arch, compiled=True) as found:
        case.call()
    key = fingerprint(found.launches, case.loop_weights)
    launches: list[Any] = []
    for launch in found.launches:
        figure = figures.read(launch, case.arch, case.loop_weights)
        if figure not in launches:
            launches.append(figure)
    return {"key": key, "rows": sorted(map(list, found.rows)), "launches": launches}


def _perform(task: Task) -> Result:
    path, name, config = task
    try:
        if config is None:
            return compile_case(cases(Path(path))[name])
        chosen = next(c for c in load(Path(path)).CANDIDATES if f"{c.kernel}/{c.arch}/{c.label}" == name)
        weights = chosen.loop_weights(config)
        case = Case(chosen.kernel, chosen.arch, str(config), lambda: chosen.call(config), loop_weights=weights)
        return compile_case(case)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return {
            "error": f"{type(error).__name__}: {lines[0][:200]} {lines[-1][:200] if len(lines) > 1 else ''}".strip()
        }


def _quiet(path: list[str]) -> None:
    """Start of a worker: the parent's import path, and what the compiler prints goes nowhere."""
    sys.path[:] = path
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def perform(tasks: Sequence[Task], jobs: int, done: Callable[[Task, Result], None]) -> None:
    """Compile in `jobs` processes and hand each result to `done`; a crash of the compiler is a result too."""
    waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    lock = threading.Lock()
    context = multiprocessing.get_context("spawn")

    def start() -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, mp_context=context, initializer=_quiet, initargs=(sys.path,))

    def serve() -> None:
        pool = start()
        while True:
            try:
                task = waiting.get_nowait()
            except queue.Empty:
                break
            try:
                result = pool.submit(_perform, task).result()
            except BrokenProcessPool:
                result = {"error": "the compiler crashed"}
                pool = start()
            with lock:
                done(task, result)
        pool.shutdown()

    threads = [threading.Thread(target=serve) for _ in range(min(jobs, len(tasks)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

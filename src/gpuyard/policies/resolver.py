"""Policies from text: built in, by a well-known name, from a user's Python file, or trained."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from gpuyard.core.planner import OrderedPlanner, ordered
from gpuyard.core.policies import ALIASES, POLICIES
from gpuyard.core.policy import LEARNED, Policy, PolicyError, Spec, define, parse_spec, postponed
from gpuyard.errors import UserError, suggest, told_by


def find_policy(name: str) -> Policy:
    if ".py:" in name:
        path, _, function = name.rpartition(":")
        return load_policy(Path(path), function)
    if name.startswith(LEARNED):
        from gpuyard.policies.trained_policy import learned_policy  # only where one is used

        return learned_policy(name)
    if name in POLICIES:
        return POLICIES[name]
    if name.endswith(".py"):
        raise UserError(f"'{name}' names a file; add the function, as in {name}:my_policy")
    known = [*POLICIES, *ALIASES]
    raise UserError(f"unknown policy '{name}'{suggest(name, known)} (gpuyard policies lists them)")


def resolve(text: str) -> tuple[Policy, Spec]:
    """The policy that a text names, with its settings; the spec says what discipline and placement it asks for."""
    spec = parse_spec(text)
    if spec.name in ALIASES:
        base = parse_spec(ALIASES[spec.name][0])
        spec = Spec(
            base.name,
            base.settings | spec.settings,
            spec.discipline or base.discipline,
            spec.placement or base.placement,
        )
    return find_policy(spec.name).with_settings(spec.settings), spec


def make_planner(
    text: str,
    *,
    discipline: str | None = None,
    placement: str = "first",
    quantum: float | None = None,
    lenient: bool = False,
) -> OrderedPlanner:
    """A planner from a policy's text; what the text leaves open is taken from the other arguments.

    With `lenient`, a discipline that a preemptive policy cannot have is dropped, as in a comparison of many policies.
    """
    policy, spec = resolve(text)
    if quantum is not None and policy.preemptive and "quantum" not in spec.settings:
        policy = policy.with_settings({"quantum": quantum})
    if lenient and policy.preemptive and discipline not in ("strict", "skip"):
        discipline = None
    return ordered(policy, spec.discipline or discipline or policy.discipline or None, spec.placement or placement)


def check_passed(text: str) -> None:
    """Refuse a trained policy that has not passed its gate, as every daemon does."""
    if (name := parse_spec(text).name).startswith(LEARNED):
        from gpuyard.policies.guard import check_gate
        from gpuyard.policies.trained_policy import load

        check_gate(name, load(name.removeprefix(LEARNED)))


def split_list(texts: Iterable[str]) -> list[str]:
    """Policies from options: separated by spaces, or by commas where those are not part of settings."""
    policies: list[str] = []
    for text in texts:
        for word in text.split():
            for n, part in enumerate(filter(None, word.split(","))):
                if n and "=" in part and ":" not in part:
                    policies[-1] += f",{part}"
                else:
                    policies.append(part)
    return policies


def load_policy(path: Path, function: str) -> Policy:
    """The policy of that name in a Python file; a plain function is enough, without the decorator."""
    if not path.is_file():
        raise UserError(f"there is no file {path} to load the policy '{function}' from")
    spec = importlib.util.spec_from_file_location(f"gpuyard_policy_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} cannot be loaded as a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    before = postponed.set(True)
    try:
        spec.loader.exec_module(module)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except BaseException as error:  # whatever a user's file may raise is the user's to mend
        what = f"{type(error).__name__}: {error.msg}" if isinstance(error, SyntaxError) else told_by(error)
        raise UserError(f"{_location_of(error, path)}: {what}") from None
    finally:
        postponed.reset(before)
    found = getattr(module, function.replace("-", "_"), None)
    if found is None:
        names = [n for n, value in vars(module).items() if isinstance(value, Policy | PolicyError) or callable(value)]
        raise UserError(f"{path} has no policy '{function}'{suggest(function, names)}")
    if isinstance(found, PolicyError):
        raise UserError(f"{path}: {found}")
    if not isinstance(found, Policy):
        if not callable(found):
            raise UserError(f"{function} in {path} is not a function")
        found = define(found)
    return replace(found, source=f"{path}:{function}")


def _location_of(error: BaseException, path: Path) -> str:
    line = error.lineno if isinstance(error, SyntaxError) else None
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if line is None and Path(frame.filename).resolve() == path.resolve():
            line = frame.lineno
    return f"{path}, line {line}" if line else str(path)

"""Signatures do not depend on what belongs to one run, and do on all else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuyard.predict.signatures import Signature, epochs_of, overridden, sign, with_own_id

words = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=1, max_size=8)
own = st.sampled_from(
    ["--id", "--seed", "--run_name", "--output-dir", "--log_file", "--port", "--checkpoint_dir", "--name"]
)
sizes = st.integers(1, 1024)


def signature(*command: str, content: str = "c", user: str = "ann", **more: object) -> Signature:
    return sign(command, directory="/work", content=content, user=user, **more)  # type: ignore[arg-type]


@given(st.lists(st.tuples(own, words, st.booleans()), max_size=5), sizes)
def test_what_belongs_to_one_run_does_not_matter(options: list[tuple[str, str, bool]], batch: int) -> None:
    given = [w for name, value, joined in options for w in ([f"{name}={value}"] if joined else [name, value])]
    plain = signature("python", "train.py", f"--batch-size={batch}")
    assert signature("/opt/x/bin/python3.11", "-u", "train.py", *given, "--batch-size", str(batch)) == plain


@given(sizes, sizes)
def test_what_may_change_the_memory_does(first: int, second: int) -> None:
    one, other = (signature("python", "train.py", "--batch-size", str(size), "--id", "3") for size in (first, second))
    assert (one == other) == (first == second)


@given(
    st.integers(1, 10**6), st.integers(1, 10**6), st.sampled_from(["--epochs", "--max_epochs", "--num-train-epochs"])
)
def test_epochs_are_read_and_do_not_matter(first: int, second: int, name: str) -> None:
    assert epochs_of(["python", "train.py", name, str(first)]) == first
    assert epochs_of(["python", "train.py", f"{name}={first}"]) == first
    assert signature("python", "a.py", name, str(first)) == signature("python", "a.py", f"{name}={second}")


@given(st.lists(words, max_size=4), st.integers(1, 99), st.integers(1, 99), st.booleans())
def test_arguments_take_the_place_of_those_of_their_name(rest: list[str], old: int, new: int, joined: bool) -> None:
    given = [f"--epochs={old}"] if joined else ["--epochs", str(old)]
    changed = overridden(["python", "a.py", *given, *rest], ["--epochs", str(new)])
    assert changed == ["python", "a.py", *([f"--epochs={new}"] if joined else ["--epochs", str(new)]), *rest]
    assert overridden(["python", "a.py"], ["--epochs=2"]) == ["python", "a.py", "--epochs=2"]


@given(words, words)
def test_its_own_id_is_given_only_where_there_is_one(former: str, id: str) -> None:
    assert with_own_id(["python", "a.py", f"--id={former}"], id) == ["python", "a.py", f"--id={id}"]
    assert with_own_id(["python", "a.py", "--id", former], id) == ["python", "a.py", "--id", id]
    assert with_own_id(["python", "a.py", former], id) == ["python", "a.py", former]

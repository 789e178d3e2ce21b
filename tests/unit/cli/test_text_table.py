"""Tables on a narrow terminal."""

from __future__ import annotations

from gpuyard.cli.terminal.text_table import columns, lines

WHY = "needs 4 GPUs, 0 idle; 2 are reserved for ann until Friday, and one is drained for repair"
HEADS = ("ID", "NAME", "STATE", "REASON")


def test_the_last_column_is_wrapped_and_nothing_is_lost() -> None:
    found = lines(HEADS, [("1", "train.py", "queued", WHY), ("2", "eval.py", "running", "")], 60)
    assert max(map(columns, found)) <= 60
    assert found[0] == "ID  NAME      STATE    REASON"
    assert [line[:23].strip() for line in found[1:]] == ["1   train.py  queued", "", "", "2   eval.py   running"]
    assert " ".join(line[23:] for line in found[1:-1]).split() == WHY.split()


def test_the_widest_of_the_others_is_cut_where_this_makes_room() -> None:
    rows = [("1", "a name that is rather long", "queued", WHY), ("2", "short", "running", "")]
    found = lines(HEADS, rows, 52)
    assert max(map(columns, found)) <= 52
    assert found[0] == "ID  NAME               STATE    REASON"
    assert found[1].startswith("1   a name that is r…  queued   needs 4 GPUs, 0")
    assert " ".join(line[32:] for line in found[1:-1]).split() == WHY.split()


def test_it_is_below_the_others_where_these_leave_no_room() -> None:
    found = lines(HEADS, [("1", "a name that is rather long", "queued", WHY)], 42)
    assert max(map(columns, found)) <= 42
    assert found[2:4] == ["1   a name that is rather long  queued", "    needs 4 GPUs, 0 idle; 2 are reserved"]
    assert " ".join(found[3:]).split() == WHY.split()
    found = lines(HEADS, [("1", "a name that is rather long", "queued", WHY)], 34)
    assert found[2] == "1   a name that is rather…  queued"


def test_what_does_not_fit_beside_the_others_is_below_them_too() -> None:
    heads = ("ID", "ENDED", "COMMAND", "REASON")
    found = lines(heads, [("50", "2026-11-19 22:44", "sh -c 'exit 3'", "exit code 3"), ("51", "-", "true", "")], 30)
    assert found == [
        "ID  ENDED", "    COMMAND  REASON", "50  2026-11-19 22:44", "    sh -c 'exit 3'  exit code", "    3",
        "51  -", "    true",
    ]  # fmt: skip


def test_a_wide_table_is_left_alone() -> None:
    assert lines(HEADS, [("1", "x", "queued", WHY)], None)[1].endswith(WHY)

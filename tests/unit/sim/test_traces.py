"""Trace files: what is read from them, and what is said about those that cannot be used."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gpuyard.errors import UserError
from gpuyard.sim.traces import FORMATS, read

SWF = "; MaxNodes: 4\n; MaxProcs: 16\n"
CSV = "job,submit,run,gpus\n"


def swf_line(job: object = 1, **fields: object) -> str:
    """One SWF line: -1 wherever nothing is said."""
    numbers = {"submit": 2, "run": 4, "used": 5, "wanted": 8, "requested": 9, "user": 12}
    cells = ["-1"] * 18
    cells[0] = str(job)
    for name, value in {"submit": 0, "run": 10, "used": 1, **fields}.items():
        cells[numbers[name] - 1] = str(value)
    return " ".join(cells) + "\n"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Write a file into a fresh working directory, so that messages show its bare name."""
    monkeypatch.chdir(tmp_path)

    def make(name: str, content: str | bytes) -> str:
        Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
        return name

    return make


def problem(path: str, format: str | None = None) -> str:
    """The one sentence a user gets for this file."""
    with pytest.raises(UserError) as caught:
        read(path, format)
    message = str(caught.value)
    assert "\n" not in message
    assert message.isprintable()
    return message


# -- SWF


def test_swf_columns(file: Callable[..., str]) -> None:
    text = SWF + swf_line(7, submit=5, run=30, used=2, wanted=4, requested=60, user=3)
    text += swf_line(3, submit=1, run=20, used=2) + "\n; a comment in between\n"
    trace = read(file("a.swf", text))
    assert trace.ids == ["7", "3"]  # file order, not submit order
    assert trace.submit.tolist() == [5, 1]
    assert trace.run.tolist() == [30, 20]
    assert trace.gpus.tolist() == [4, 2]
    assert trace.requested.tolist() == [60, 20]
    assert trace.users == ["3", ""]
    assert trace.compute.tolist() == [100, 100]
    assert (trace.capacity, trace.format, trace.dropped) == (16, "swf", {})


def test_swf_without_procs_takes_nodes(file: Callable[..., str]) -> None:
    assert read(file("a.swf", "; MaxNodes: 4\n" + swf_line())).capacity == 4
    assert read(file("b.swf", "; MaxNodes: 4\n; MaxProcs: -1\n" + swf_line())).capacity == 4
    assert read(file("c.swf", swf_line())).capacity is None


def test_swf_drops_are_counted(file: Callable[..., str]) -> None:
    lines = [swf_line(1, run=0), swf_line(2, run=-1), swf_line(3, used=0), swf_line(4)]
    trace = read(file("a.swf", "".join(lines)))
    assert trace.ids == ["4"]
    assert trace.dropped == {"run time 0 or unknown": 2, "no processors": 1}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (swf_line(2, run=-3), "a.swf, line 2: run time must be above 0, not -3"),
        (swf_line(2, submit=-1), "a.swf, line 2: submit time must be 0 or more, not -1"),
        (swf_line(2, run="nan"), "a.swf, line 2: field 4 must be a number, not 'nan'"),
        (swf_line(2, submit="inf"), "a.swf, line 2: field 2 must be a number, not 'inf'"),
        (swf_line(2, run="1_0"), "a.swf, line 2: field 4 must be a number, not '1_0'"),
        (swf_line(2, run="1-0"), "a.swf, line 2: field 4 must be a number, not '1-0'"),
        (swf_line(2, requested="soon"), "a.swf, line 2: field 9 must be a number, not 'soon'"),
        ("1 2 3\n", "a.swf, line 2: a line has 18 fields, this one has 3"),
        (" ".join(["2"] * 17 + ["x"]), "a.swf, line 2: field 18 must be a number, not 'x'"),
        (swf_line(1), "a.swf, line 2: job '1' is already on line 1"),
        (swf_line(2, used=1.5), "processors must be a whole number of at most 1e+09, not 1.5"),
        (swf_line(2, used="9" * 30), "processors must be a whole number of at most 1e+09, not 1e+30"),
        (swf_line(2, run=1e300), "run time must be at most 1e+12, not 1e+300"),
    ],
)
def test_swf_mistakes(file: Callable[..., str], line: str, said: str) -> None:
    assert said in problem(file("a.swf", swf_line(1) + line))


def test_swf_comment_in_latin_1(file: Callable[..., str]) -> None:
    assert len(read(file("a.swf", "; Grüße\n".encode("latin-1") + swf_line().encode()))) == 1


def test_nothing_left(file: Callable[..., str]) -> None:
    assert problem(file("a.swf", swf_line(run=0))) == ("a.swf holds no jobs to use (1 dropped: run time 0 or unknown)")
    assert problem(file("b.swf", "; MaxProcs: 4\n")) == "b.swf holds no jobs"


# -- Tiresias


def test_tiresias(file: Callable[..., str]) -> None:
    trace = read(file("a", "model_name,job_id,num_gpu,submit_time,duration\nvgg,9,2,30,12.5\n"))
    assert (trace.ids, trace.gpus.tolist(), trace.submit.tolist(), trace.run.tolist()) == (
        ["9"],
        [2],
        [30],
        [12.5],
    )
    assert np.isnan(trace.requested).all()
    assert trace.format == "tiresias"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("job_id,num_gpu,submit_time\n", "a.csv, line 1: the column 'duration' is missing"),
        ("job_id,num_gpu,submit_time,duration\n1,1,0,0\n", "a.csv, line 2: duration must be above 0, not 0"),
        (
            "job_id,num_gpu,submit_time,duration\n1,1,0\n",
            "a.csv, line 2: the header has 4 columns, this line has 3",
        ),
        ("job_id,num_gpu,submit_time,duration\n1,,0,3\n", "a.csv, line 2: num_gpu is missing"),
    ],
)
def test_tiresias_mistakes(file: Callable[..., str], text: str, said: str) -> None:
    assert problem(file("a.csv", text)) == said


# -- gpuyard's own tables


def test_csv_all_columns(file: Callable[..., str]) -> None:
    text = (
        "# made by hand\n\n"
        "gpus,job,submit,run,requested,priority,user,weight,tickets,memory,compute,deadline,preemptible\n"
        '2, "a,b",1m,1.5h,02:00:00,-3,ann,2,5,6G,50,1d,no\n'
        "1,c,0,10,,,,,,,,,\n"
    )
    trace = read(file("a.txt", text))
    assert trace.ids == ["a,b", "c"]
    assert trace.users == ["ann", ""]
    assert trace.submit.tolist() == [60, 0]
    assert trace.run.tolist() == [5400, 10]
    assert trace.requested[0] == 7200
    assert np.isnan(trace.requested[1])
    assert trace.priority.tolist() == [-3, 0]
    assert (trace.weight.tolist(), trace.tickets.tolist()) == ([2, 1], [5, 1])
    assert trace.memory.tolist() == [6 * 2**30, 0]
    assert trace.compute.tolist() == [50, 100]
    assert trace.deadline.tolist() == [86400, np.inf]
    assert trace.preemptible.tolist() == [False, True]


def test_a_fraction_is_a_share(file: Callable[..., str]) -> None:
    trace = read(file("a.csv", CSV + "a,0,1,0.07\nb,0,1,2\n"))
    assert trace.gpus.tolist() == [1, 2]
    assert trace.compute.tolist() == [7, 100]


def test_memory_alone_is_a_share_by_memory(file: Callable[..., str]) -> None:
    assert read(file("a.csv", "job,submit,run,gpus,memory\na,0,1,1,1G\nb,0,1,1,\n")).compute.tolist() == [
        0,
        100,
    ]


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("job,submit,run,gpu", "a.csv, line 1: unknown column 'gpu'; did you mean 'gpus'?"),
        (
            "job,submit,run,gpus,colour",
            "a.csv, line 1: unknown column 'colour'; call it label_colour to keep it, or leave it out",
        ),
        ("job,submit,run", "a.csv, line 1: the column 'gpus' is missing"),
        ("job,submit,run,gpus,run", "a.csv, line 1: the column 'run' is there twice"),
        ('job,"submit,run,gpus', "a.csv, line 1: a quotation mark is out of place or not closed"),
    ],
)
def test_csv_headers(file: Callable[..., str], header: str, said: str) -> None:
    assert problem(file("a.csv", header + "\n"), "gpuyard") == said


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("b,0,-3,1", "run must be above 0, not -3"),
        ("b,0,0,1", "run must be above 0, not 0"),
        ("b,0,nan,1", "run: 'nan' is not a duration"),
        ("b,0,inf,1", "run must be a finite number, not inf"),
        ("b,0,1e999,1", "run must be a finite number, not inf"),
        ("b,0,1_0,1", "run: '1_0' is not a duration"),
        ("b,0,1 fortnight,1", "run: '1 fortnight' is not a duration"),
        ("b,0," + "9" * 99 + ",1", "run is not a number: '9999"),
        ("b,-1,1,1", "submit must be 0 or more, not -1"),
        ("b,0,1,0", "gpus must be above 0, not 0"),
        ("b,0,1,1.5", "gpus must be whole, or a fraction below 1, not 1.5"),
        ("b,0,1,1e30", "gpus must be at most 1e+09, not 1e+30"),
        ("b,0,,1", "run is missing"),
        (",0,1,1", "job is missing"),
        ("b,0,1", "the header has 4 columns, this line has 3"),
        ("b,0,1,1,", "the header has 4 columns, this line has 5"),
        ("a,0,1,1", "job 'a' is already on line 3"),
        ('"b,0,1,1', "a quotation mark is out of place or not closed"),
        ("b\x1b,0,1,1", "job 'b?' has a control character in it"),
    ],
)
def test_csv_mistakes(file: Callable[..., str], row: str, said: str) -> None:
    message = problem(file("jobs.csv", CSV + "\na,0,1,1\n# comment\n" + row + "\n"))
    assert message.startswith("jobs.csv, line 5: " + said)


@pytest.mark.parametrize(
    ("column", "cell", "said"),
    [
        ("requested", "0", "requested must be above 0, not 0"),
        ("weight", "0", "weight must be above 0, not 0"),
        ("tickets", "-1", "tickets must be above 0, not -1"),
        ("memory", "-1", "memory must be 0 or more, not -1"),
        ("memory", "6X", "memory: '6X' is not a size"),
        ("compute", "0", "compute must be above 0, not 0"),
        ("compute", "100.5", "compute must be at most 100, not 100.5"),
        ("priority", "high", "priority: 'high' is not a number"),
        ("deadline", "inf", "deadline must be a finite number, not inf"),
        ("preemptible", "maybe", "preemptible: write true or false, not 'maybe'"),
        ("preemptible", "0.5", "preemptible: write true or false, not '0.5'"),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_mistakes_in_optional_columns(file: Callable[..., str], kind: str, column: str, cell: str, said: str) -> None:
    if kind == "csv":
        path, line = file("a.csv", f"job,submit,run,gpus,{column}\nb,0,1,1,{cell}\n"), 2
    else:
        path, line = (
            file("a.jsonl", json.dumps({"job": "b", "submit": 0, "run": 1, "gpus": 1, column: cell})),
            1,
        )
    assert problem(path).startswith(f"{path}, line {line}: {said}")


def test_fraction_with_compute_is_refused(file: Callable[..., str]) -> None:
    path = file("a.csv", "job,submit,run,gpus,compute\nb,0,1,0.5,50\n")
    assert problem(path) == "a.csv, line 2: gpus is a fraction, 0.5, and compute is given too"


@pytest.mark.parametrize(
    ("cell", "flag"),
    [("true", True), ("Yes", True), ("1", True), ("FALSE", False), ("no", False), ("0", False)],
)
def test_flags(file: Callable[..., str], cell: str, flag: bool) -> None:
    trace = read(file("a.csv", f"job,submit,run,gpus,preemptible\nb,0,1,1,{cell}\n"))
    assert trace.preemptible.tolist() == [flag]


def test_jsonl(file: Callable[..., str]) -> None:
    text = '{"job": 5, "submit": "1m", "run": 2.5, "gpus": 0.5, "preemptible": false, "user": null}\n\n'
    text += '{"job": "b", "submit": 0, "run": 1, "gpus": 8, "memory": "6G", "user": "ann", "preemptible": 1}\n'
    trace = read(file("a", text))
    assert (trace.ids, trace.users, trace.format) == (["5", "b"], ["", "ann"], "jsonl")
    assert (trace.submit.tolist(), trace.gpus.tolist(), trace.compute.tolist()) == ([60, 0], [1, 8], [50, 0])
    assert trace.preemptible.tolist() == [False, True]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"job": "b", "submit": 0, "run": 1}', "gpus is missing"),
        ('{"submit": 0, "run": 1, "gpus": 1}', "job is missing"),
        ('{"job": "b", "submit": 0, "run": 1, "gpu": 1}', "unknown key 'gpu'; did you mean 'gpus'?"),
        ('{"job": "b", "submit": 0, "run": 1, "gpus": 1, "run": 2}', "the key 'run' is there twice"),
        ('{"job": "b", "submit": 0, "run": true, "gpus": 1}', "run must be a number or text, not 'True'"),
        ('{"job": "b", "submit": 0, "run": NaN, "gpus": 1}', "run must be a finite number, not nan"),
        ('{"job": "b", "submit": 0, "run": 1' + "0" * 400 + ', "gpus": 1}', "run is too large a number"),
        ('{"job": ["b"], "submit": 0, "run": 1, "gpus": 1}', "job must be text or a number, not"),
        ('{"job": "\\ud800", "submit": 0, "run": 1, "gpus": 1}', "job '?' has a control character in it"),
        ('{"job": "a", "submit": 0, "run": 1, "gpus": 1}', "job 'a' is already on line 1"),
        ('{"job": "b"', "not valid JSON"),
        ("[1]", "each line must be a JSON object"),
    ],
)
def test_jsonl_mistakes(file: Callable[..., str], line: str, said: str) -> None:
    good = '{"job": "a", "submit": 0, "run": 1, "gpus": 1}\n'
    assert problem(file("a.jsonl", good + line)).startswith(f"a.jsonl, line 2: {said}")


# -- files


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress, bz2.compress])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_compression_and_newlines(file: Callable[..., str], pack: Callable[[bytes], bytes], newline: str) -> None:
    text = (CSV + "ä,0,1,1\nb,1,1,1\n").replace("\n", newline)
    trace = read(file("whatever", pack(text.encode("utf-8-sig"))))
    assert trace.ids == ["ä", "b"]
    assert problem(file("bad", pack((text + "c,0,0,1").encode()))).startswith("bad, line 4: run must be above 0")


def test_longer_than_the_first_look(file: Callable[..., str]) -> None:
    rows = "".join(f"jöb{i},{i},1,1\n" for i in range(20_000))
    trace = read(file("a.csv.gz", gzip.compress((CSV + rows).encode())))
    assert len(trace) == 20_000
    assert trace.ids[-1] == "jöb19999"


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = gzip.compress((CSV + "a,0,1,1\nb,0,0,1\n").encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(packed)))
    assert problem("-") == "standard input, line 3: run must be above 0, not 0"


def test_files_that_are_no_traces(file: Callable[..., str], tmp_path: Path) -> None:
    assert problem("absent.csv") == "absent.csv: no such file"
    assert problem(".") == ". is a directory, not a file"
    assert problem(file("a", "")) == "a is empty"
    assert problem(file("a", " \n\n")) == "a is empty"
    assert problem(file("a", gzip.compress(b""))) == "a is empty"
    assert problem(file("a", CSV)) == "a holds no jobs"
    assert problem(file("a", bytes(range(256)) * 10)) == "a is not a text file"
    assert problem(file("a", "Grüße,1,2\n".encode("latin-1"))) == "a is not UTF-8 text"
    assert problem(file("a", CSV.encode() + b"\xff,0,1,1\n")) == "a, line 2: this is not UTF-8 text"
    said = problem(file("a", "hello world\n"))
    assert said.startswith("a does not look like a trace; if it is one, give --format swf, ")
    assert said.endswith(" or batsim")


def test_broken_compression(file: Callable[..., str]) -> None:
    numbers = np.random.default_rng(1).random(20_000).tolist()  # hardly compressible
    text = (CSV + "".join(f"{i},{submit},1,1\n" for i, submit in enumerate(numbers))).encode()
    packers: dict[str, Callable[[bytes], bytes]]
    packers = {"a.gz": gzip.compress, "a.xz": lzma.compress, "a.bz2": bz2.compress}
    for name, pack in packers.items():
        packed = pack(text)
        assert len(read(file(name, packed))) == 20_000
        assert re.fullmatch(
            rf"{name}(, after line \d+)?: the compressed file is cut off; get it anew",
            problem(file(name, packed[:-20])),
        )
        assert problem(file(name, packed[:20])) == f"{name}: the compressed file is cut off; get it anew"
        middle = len(packed) // 2
        damaged = packed[:middle] + bytes(b ^ 0xFF for b in packed[middle : middle + 50]) + packed[middle + 50 :]
        assert problem(file(name, damaged)).startswith(f"{name}")
    assert problem(file("d.gz", b"\x1f\x8bnot really")).startswith("d.gz: cannot be read (")


def test_format_overrides_and_suggests(file: Callable[..., str]) -> None:
    path = file("a.csv", CSV + "a,0,1,1\n")
    assert read(path).format == "gpuyard"
    assert problem(path, "swf") == "a.csv, line 1: a line has 18 fields, this one has 1"
    assert problem(path, "tiresia") == "unknown trace format 'tiresia'; did you mean 'tiresias'?"
    assert problem(path, "?").endswith("known are " + ", ".join(FORMATS))

"""The table of a job's fields in the documentation: `python -m gpuyard.spec.reference docs/reference/queue.md`."""

from __future__ import annotations

import sys
from pathlib import Path

from gpuyard.spec.fields import FIELDS, MOST_INDEX, MOST_SECONDS
from gpuyard.spec.job_field import JobField
from gpuyard.units import LEAST_SHARE, format_number

BEGIN, END = "<!-- fields of a job: generated from gpuyard.spec.fields -->", "<!-- end of the generated table -->"
_HEAD = "| field (API) | option | key in files | `#SBATCH` | value | default | may change | meaning |"


def table() -> str:
    rows = [" | ".join(_cells(field)).replace("  ", " ") for field in FIELDS]
    return "\n".join([_HEAD, "|---" * (_HEAD.count("|") - 1) + "|", *(f"| {row} |" for row in rows)])


def _cells(field: JobField) -> list[str]:
    changes = "also while it runs" if field.while_running else "while it waits" if field.editable else ""
    about = field.description or (field.option.help if field.option else "")
    return [
        f"`{field.name}`" if field.name != "export" else "",
        f"`{field.flag}`" if field.flag else "",
        f"`{field.key}`" if field.key else "",
        f"`--{field.slurm}`" if field.slurm else "",
        _value(field),
        "" if field.default in (None, [], {}) else f"`{field.kind.format(field.default)}`",
        changes,
        about.replace("|", "\\|"),
    ]


def _value(field: JobField) -> str:
    unit = field.unit or field.kind.unit
    limits = [f"one of {', '.join(field.choices)}"] if field.choices else []
    if field.above is not None:
        limits.append(f"above {format_number(field.above)}")
    if field.least is not None:
        limits.append(f"{'1 MiB' if field.least == LEAST_SHARE else format_number(field.least)} or more")
    if field.most is not None and field.most not in (MOST_INDEX, MOST_SECONDS):
        limits.append(f"{format_number(field.most)} at most")
    limits += [f"{field.longest} characters at most"] if field.longest else []
    limits += [f"{field.most_items} at most"] if field.most_items else []
    limits += ["not in the past"] if field.future else []
    return ", ".join([field.kind.name + (f" ({unit})" if unit else ""), *limits])


def updated(text: str) -> str:
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(updated(page.read_text()))

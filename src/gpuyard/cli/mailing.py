"""Mail that a script for Slurm asks for, on a machine whose daemon may have no mail server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuyard.cli import output

if TYPE_CHECKING:
    from gpuyard.client import Client


def without_vain_mail(wanted: dict[str, Any], client: Client) -> dict[str, Any]:
    """The same job, without addresses that nothing can be sent to: a script for Slurm is to run all the same."""
    addresses = [text for text in wanted.get("notify") or () if "@" in text and "://" not in text]
    if not addresses or not wanted.get("slurm") or client.can_mail():
        return wanted
    output.say(
        f"warning: no mail is sent to {', '.join(addresses)}: the daemon knows no mail server (setting mail); "
        "gpuyard notify add tells you of your jobs by other ways"
    )
    left = [text for text in wanted["notify"] if text not in addresses]
    return {**{name: value for name, value in wanted.items() if name != "notify"}, "notify": left or ["all"]}

"""Deepening: a new layer or block behind an existing one, at first without effect."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gpuyard.adapt.ops.containers import Gated, Grown, Place, Residual, bare, find, locate
from gpuyard.adapt.ops.forward_pass import Inputs, Seen, check, inputs, parameters, run, seen, undisturbed
from gpuyard.adapt.ops.graph import made
from gpuyard.adapt.ops.growth_sites import Found, check_model, chosen
from gpuyard.adapt.ops.growths import Entry, Growth, NotPreserved, Refused, Site, append_entry
from gpuyard.adapt.ops.layers import KINDS, width
from gpuyard.adapt.ops.optimizers import check_optimizer, join
from gpuyard.errors import UserError, suggest

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def insert(model: nn.Module, entry: Entry) -> nn.Module:
    place = locate(model, entry["anchor"])
    devices = {p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(devices)), torch.no_grad():
        torch.manual_seed(0)
        added = _stage(model, entry, place) if "layer" in entry else _copied(entry, bare(place.module))
    added.train(bare(place.module).training)
    if isinstance(place.module, Grown):
        place.module.grown.append(added)
    else:
        place.put(Grown(place.module, [added]))
    return added


def take_out(model: nn.Module, entry: Entry) -> nn.Module:
    place = locate(model, entry["anchor"])
    if not isinstance(place.module, Grown) or not len(place.module.grown):
        raise UserError(f"nothing grew behind '{entry['anchor']}'")
    added = place.module.grown[-1]
    del place.module.grown[-1]
    if not len(place.module.grown):
        place.put(place.module.origin)
    return added


def kin(model: nn.Module, entry: Entry, added: nn.Module) -> Iterator[tuple[nn.Parameter, list[nn.Parameter]]]:
    if "layer" not in entry:
        block = find(model, entry["anchor"])
        theirs = dict(block.named_parameters())
        for name, parameter in added.named_parameters():
            alike = theirs.get(name.removeprefix("block."))
            yield parameter, [*([alike] if alike is not None else []), *theirs.values()]
        return
    layer = find(model, entry["layer"])
    norm = find(model, entry["norm"]) if entry["norm"] else layer
    for name, parameter in added.named_parameters():
        of, role = (norm if ".norm." in f".{name}" else layer), name.rpartition(".")[2]
        own = [module._parameters.get(key) for module in (of, layer) for key in (role, "weight")]
        yield parameter, [p for p in own if p is not None]


def calibrate(model: nn.Module, added: nn.Module, example: Inputs) -> None:
    """Make a new batch norm an identity, in training on the example and in evaluation everywhere."""
    norm = added.norm if isinstance(added, nn.Sequential) and hasattr(added, "norm") else None
    if not isinstance(norm, nn.modules.batchnorm._BatchNorm):
        return
    values = _reaching(model, norm, example)
    if values is None:
        raise UserError("the new batch norm is not reached when the network runs on the example")
    x = values.transpose(0, 1).flatten(1).double()
    mean, variance = x.mean(1), x.var(1, unbiased=False)
    # A channel that is dead on the example tells nothing of its scale: it gets that of the others, and stays zero.
    dead = (x == 0).all(1)
    alive = variance[~dead]
    variance[dead] = alive.mean() if alive.numel() and float(alive.mean()) > 0.0 else 1.0
    with torch.no_grad():
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(variance)
        norm.bias.copy_(mean)
        norm.weight.copy_((norm.running_var.double() + norm.eps).sqrt())


def _reaching(model: nn.Module, norm: nn.Module, example: Inputs) -> Tensor | None:
    caught: list[Tensor] = []
    handle = norm.register_forward_pre_hook(lambda _, args: caught.append(args[0].detach().clone()))
    try:
        for train in (True, False):
            with undisturbed(model):
                try:
                    run(model, example, train=train)
                except (RuntimeError, ValueError):
                    if not train:
                        raise
            if caught:
                return caught[0]
    finally:
        handle.remove()
    return None


def _stage(model: nn.Module, entry: Entry, place: Place) -> nn.Module:
    like = find(model, entry["layer"])
    norm = _norm_like(_latest(place, "norm") or find(model, entry["norm"]), entry["style"]) if entry["norm"] else None
    # After widening, what grew there before may give other channels than the layer itself.
    layer = _layer_like(like, width(_latest(place, "layer") or like))
    if entry["style"] == "identity":
        _make_identity(layer)
    elif norm is None:
        zero(layer)
    else:
        zero(norm)
    parts: dict[str, nn.Module] = {"act": made(entry["activation"]), "layer": layer}
    if norm is not None:
        parts["norm"] = norm
    body = nn.Sequential()
    for name, part in parts.items():
        body.add_module(name, part)
    return body if entry["style"] == "identity" else Residual(body)


def _latest(place: Place, part: str) -> nn.Module | None:
    if not isinstance(place.module, Grown):
        return None
    last = place.module.grown[-1]
    return (last.body if isinstance(last, Residual) else last)._modules.get(part)


def _layer_like(like: nn.Module, channels: int) -> nn.Module:
    weight = like._parameters["weight"]
    assert weight is not None
    options: dict[str, Any] = {
        "bias": like._parameters.get("bias") is not None, "device": weight.device, "dtype": weight.dtype
    }  # fmt: skip
    if isinstance(like, nn.Linear):
        return nn.Linear(channels, channels, **options)
    kernel: tuple[int, ...] = like.kernel_size  # type: ignore[assignment]
    groups = int(like.groups)  # type: ignore[arg-type]
    if channels % groups:
        groups = 1
    options |= {"padding": tuple(size // 2 for size in kernel), "groups": groups, "padding_mode": like.padding_mode}
    conv: Any = next(kind for kind in KINDS if kind is type(like))
    layer: nn.Module = conv(channels, channels, kernel, **options)
    return layer


def _norm_like(norm: nn.Module, style: str) -> nn.Module | None:
    """A fresh norm of the same kind; None if it has no weight that could be zero."""
    if isinstance(norm, nn.modules.batchnorm._BatchNorm) and not norm.affine:
        if style == "residual":
            return None
        reference = next(iter(norm.buffers()))
        made: nn.Module = type(norm)(norm.num_features, norm.eps, norm.momentum)
        return made.to(reference.device, reference.dtype)
    if norm._parameters.get("weight") is None:
        return None
    fresh = unhooked(copy.deepcopy(norm))
    fresh.reset_parameters()  # type: ignore[operator]
    return fresh.requires_grad_(True)


def _make_identity(layer: nn.Module) -> None:
    weight: Tensor = layer.weight  # type: ignore[assignment]
    if isinstance(layer, nn.Linear):
        nn.init.eye_(weight)
    else:
        nn.init.dirac_(weight, groups=int(layer.groups))  # type: ignore[arg-type]
    if layer._parameters.get("bias") is not None:
        nn.init.zeros_(layer.bias)  # type: ignore[arg-type]


def zero(module: nn.Module) -> None:
    for parameter in module.parameters(recurse=False):
        nn.init.zeros_(parameter)


def unhooked(module: nn.Module) -> nn.Module:
    """A copied module without the hooks of the original."""
    for part in module.modules():
        for name in _HOOKS:
            getattr(part, name).clear()
    return module


def _copied(entry: Entry, block: nn.Module) -> nn.Module:
    """A copy of a block whose branches end in zeros; it keeps the weights before them."""
    twin = unhooked(copy.deepcopy(block))
    if not any(parameter.requires_grad for parameter in twin.parameters()):
        twin.requires_grad_(True)
    for parameter in twin.parameters():
        parameter.grad = None
    for name in entry["bypassed"]:
        locate(twin, name).put(nn.Identity())
    for name, channels in entry["convs"].items():
        place = locate(twin, name)
        place.put(_restrided(place.module, channels))
    for name in entry["zeroed"]:
        zero(find(twin, name))
    if entry["style"] == "gated":
        return Gated(twin, next(block.parameters()))
    return twin


def _restrided(conv: nn.Module, channels: int) -> nn.Module:
    """The same convolution from another number of channels, without a stride."""
    assert isinstance(conv, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    kind: Any = type(conv)
    made: nn.Module = kind(
        channels, conv.out_channels, conv.kernel_size, padding=conv.padding, dilation=conv.dilation,
        groups=conv.groups, bias=conv.bias is not None, padding_mode=conv.padding_mode,
        device=conv.weight.device, dtype=conv.weight.dtype,
    )  # fmt: skip
    if channels == conv.in_channels:
        made.load_state_dict(conv.state_dict())
    return made


STYLES = ("auto", "identity", "residual")


def deepen(
    model: nn.Module,
    site: Site | str,
    *,
    example: Any,
    optimizer: Optimizer | None = None,
    style: str = "auto",
    verify: bool = True,
) -> Growth:
    """Puts a layer behind a site, or a copy behind a block, in place; the function stays, or nothing is changed."""
    if style not in STYLES:
        raise UserError(f"there is no style '{style}'{suggest(style, STYLES)} ({', '.join(STYLES)})")
    check_model(model)
    check_optimizer(optimizer, model)
    given = inputs(example)
    found = chosen(model, given, "deepen", site)
    before = seen(model, given) if verify else None
    first = _styled(found, style)
    tried = [first]
    if style == "auto" and first["style"] == "identity":
        # Not exact where products are rounded, or where training does what evaluation does not; the last always is.
        tried += [{**first, "norm": ""}] if first["norm"] else []
        tried += [{**first, "style": "residual"}]
    for entry in tried[:-1]:
        with suppress(NotPreserved):
            return _grown(model, found, entry, given, before, optimizer, strict=True)
    return _grown(model, found, tried[-1], given, before, optimizer)


def _styled(found: Found, style: str) -> Entry:
    assert found.entry is not None
    entry = copy.deepcopy(found.entry)
    if style == "identity" and entry["style"] != "identity":
        why = "a block is deepened by a copy"
        if "layer" in entry:
            why = "no activation that is idempotent (ReLU, ReLU6, Hardtanh) takes its values, and nobody else does"
        raise Refused(f"'{found.site.name}' cannot be deepened by an identity: {why}")
    if style == "residual" and "layer" in entry:
        entry["style"] = "residual"
    return entry


def _grown(
    model: nn.Module,
    found: Found,
    entry: Entry,
    example: Inputs,
    before: Seen | None,
    optimizer: Optimizer | None,
    *,
    strict: bool = False,
) -> Growth:
    """Insert, calibrate, verify, and only then change the optimizer and the log."""
    had, added = parameters(model), None
    try:
        added = insert(model, entry)
        calibrate(model, added, example)
        differences = check(model, before, added, found.site.name, strict=strict) if before is not None else {}
        if optimizer is not None:
            join(optimizer, model, kin(model, entry, added))
    except BaseException as error:
        if added is not None:
            take_out(model, entry)
        if isinstance(error, RuntimeError | ValueError | TypeError):
            raise Refused(f"nothing can be put behind '{found.site.name}': {error}") from error
        raise
    append_entry(model, entry)
    return Growth(entry, found.site, had, parameters(model), differences)

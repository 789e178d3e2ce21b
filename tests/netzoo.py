"""Networks of many kinds to grow, each with an example of its inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class ConvNet2(nn.Module):
    """The seed's first network: 10,602 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.act1 = nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()
        self.pool1 = nn.AvgPool2d(2)
        self.conv2, self.bn2, self.act2 = nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()
        self.pool2 = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool1(self.act1(self.bn1(self.conv1(x))))
        x = self.pool2(self.act2(self.bn2(self.conv2(x))))
        return self.fc(torch.flatten(x, 1))  # type: ignore[no-any-return]


class Functional(nn.Module):
    """Activations as functions and methods, pooling between, a shared dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 8, 3), nn.Conv2d(8, 8, 1, bias=False)
        self.fc1, self.fc2, self.fc3 = nn.Linear(8 * 9, 20), nn.Linear(20, 14), nn.Linear(14, 5)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.a(x), 2))
        x = torch.relu(self.b(x))
        x = F.max_pool2d(self.c(x).relu(), 2)
        x = x.view(x.size(0), -1)
        x = self.drop(F.leaky_relu(self.fc1(x), 0.2))
        x = F.hardtanh(self.fc2(x), -0.5, 0.5)
        return F.log_softmax(self.fc3(x), dim=1)


class BasicBlock(nn.Module):
    def __init__(
        self, inside: int, outside: int, stride: int = 1, activation: Callable[[], nn.Module] = nn.ReLU
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.relu = activation()
        self.downsample: nn.Module | None = None
        if stride != 1 or inside != outside:
            self.downsample = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)  # type: ignore[no-any-return]


class ResNet(nn.Module):
    def __init__(self, activation: Callable[[], nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.layer1 = nn.Sequential(BasicBlock(8, 8, 1, activation), BasicBlock(8, 8, 1, activation))
        self.layer2 = nn.Sequential(BasicBlock(8, 16, 2, activation), BasicBlock(16, 16, 1, activation))
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(self.stem(x)))
        return self.fc(x.mean([2, 3]))  # type: ignore[no-any-return]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.transpose(-2, -1) / math.sqrt(c // self.heads)).softmax(dim=-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, t, c))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Pre-LN, attention written by hand."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.ln1, self.attn, self.ln2 = nn.LayerNorm(width), Attention(width, 4), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))  # type: ignore[no-any-return]


class MhaBlock(nn.Module):
    """Pre-LN, torch's own attention, with a mask."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, 4, dropout=0.1, batch_first=True)
        self.up, self.down = nn.Linear(width, 24), nn.Linear(24, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        h = self.ln1(x)
        x = x + self.attn(h, h, h, key_padding_mask=mask, need_weights=False)[0]
        return x + self.down(F.gelu(self.up(self.ln2(x))))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    def __init__(self, block: Callable[[], nn.Module] = Block) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.position = nn.Parameter(torch.randn(1, 6, 16) * 0.1)
        self.blocks = nn.ModuleList(block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(dim=1))  # type: ignore[no-any-return]


class Masked(nn.Module):
    """Several inputs, some by name; blocks that get a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(5, 16), nn.Linear(3, 16)
        self.blocks = nn.ModuleList(MhaBlock() for _ in range(2))
        self.head = nn.Linear(16, 4)

    def forward(self, left: Tensor, right: Tensor, mask: Tensor | None = None, scale: float = 1.0) -> dict[str, Tensor]:
        x = F.relu(self.left(left)) * scale + F.relu(self.right(right))
        for block in self.blocks:
            x = block(x, mask=mask)
        return {"logits": self.head(x[:, 0]), "features": x}


class Encoder(nn.Module):
    """torch's own encoder, norms first."""

    def __init__(self, norm_first: bool = True) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x)[:, 0])  # type: ignore[no-any-return]


class Branches(nn.Module):
    """Concatenation, groups, depthwise, circular padding."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular")
        self.two = nn.Conv2d(3, 4, 1)
        self.grouped = nn.Conv2d(8, 12, 3, padding=1, groups=2)
        self.depth, self.norm = nn.Conv2d(12, 12, 3, padding=1, groups=12, bias=False), nn.BatchNorm2d(12)
        self.point = nn.Conv2d(12, 6, 1)
        self.group_norm = nn.GroupNorm(2, 6)
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([F.relu(self.one(x)), F.relu(self.two(x))], dim=1)
        x = F.relu(self.grouped(x))
        x = F.relu6(self.norm(self.depth(x)))
        x = F.silu(self.group_norm(self.point(x)))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))  # type: ignore[no-any-return]


class Untraceable(nn.Module):
    """Asks what its values are, so that torch.fx cannot trace it."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()),
            BasicBlock(6, 6),
            nn.Conv2d(6, 8, 3, padding=1), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        )  # fmt: skip
        self.lonely = nn.Linear(32, 16)
        self.head = nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.lonely(self.features(x))
        if x.sum() > 0:
            x = x * 1.5
        return self.head(x)  # type: ignore[no-any-return]


class PartlyUntraceable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(6, 16), nn.ReLU())
        self.odd = Odd()
        self.tail = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(self.odd(self.stem(x)))  # type: ignore[no-any-return]


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(16, 8), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)
        return y if float(y.detach().sum()) > 0 else -y


class PreActivation(nn.Module):
    """Norm and activation before the layer, and a squeeze of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm1d(6), nn.Conv1d(6, 6, 3, padding=1)
        self.bn2, self.conv2 = nn.BatchNorm1d(6), nn.Conv1d(6, 6, 3, padding=1)
        self.gate = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(F.relu(self.bn1(x)))
        out = self.conv2(F.relu(self.bn2(out)))
        return x + out * torch.sigmoid(self.gate(out.mean(-1))).unsqueeze(-1)  # type: ignore[no-any-return]


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(12, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(20, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(inplace=True),
        nn.Linear(16, 10), nn.Tanh(), nn.Linear(10, 4),
    )  # fmt: skip


def conv1d() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 8, 5, stride=2, padding=2), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.MaxPool1d(2),
        nn.Conv1d(8, 8, 3, padding="same", dilation=2), nn.ReLU6(),
        nn.Conv1d(8, 4, 7, padding=3, padding_mode="reflect"), nn.ELU(), nn.Flatten(), nn.Linear(40, 3),
    )  # fmt: skip


def preactivation() -> nn.Module:
    return nn.Sequential(nn.Conv1d(2, 6, 3, padding=1), PreActivation(), PreActivation(), nn.AdaptiveAvgPool1d(1),
                         nn.Flatten(), nn.Linear(6, 4))  # fmt: skip


def images(channels: int, size: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(6, channels, size, size)


ZOO: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "convnet2": (ConvNet2, images(3, 8)),
    "functional": (Functional, images(1, 16)),
    "mlp": (mlp, lambda: torch.randn(8, 12)),
    "conv1d": (conv1d, lambda: torch.randn(6, 2, 40)),
    "resnet": (ResNet, images(3, 8)),
    "resnet-inplace": (lambda: ResNet(InPlaceReLU), images(3, 8)),
    "transformer": (Transformer, lambda: torch.randint(0, 11, (4, 6))),
    "mha": (lambda: Transformer(MhaBlock), lambda: torch.randint(0, 11, (4, 6))),
    "masked": (Masked, lambda: (torch.randn(4, 6, 5), {"right": torch.randn(4, 6, 3), "mask": _mask(), "scale": 0.5})),
    "encoder": (Encoder, lambda: torch.randn(4, 5, 16)),
    "post-norm": (lambda: Encoder(norm_first=False), lambda: torch.randn(4, 5, 16)),
    "branches": (Branches, images(3, 8)),
    "untraceable": (Untraceable, images(1, 8)),
    "partly": (PartlyUntraceable, lambda: torch.randn(5, 6)),
    "preactivation": (preactivation, lambda: torch.randn(6, 2, 10)),
}


def InPlaceReLU() -> nn.Module:  # noqa: N802
    return nn.ReLU(inplace=True)


def _mask() -> Tensor:
    mask = torch.zeros(4, 6, dtype=torch.bool)
    mask[:, 4:] = True
    return mask


def network(name: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Any]:
    """A network that has trained a little, so that no weight or statistic is what it starts with; and an example."""
    torch.manual_seed(sum(map(ord, name)))
    make, example = ZOO[name]
    model, given = make().to(dtype), _as(example(), dtype)
    model.train()
    for norm in model.modules():
        if isinstance(norm, nn.modules.batchnorm._BatchNorm | nn.LayerNorm | nn.GroupNorm):
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.normal_(norm.bias, std=0.3)
    for _ in range(2):
        called(model, given)
    return model, given


def called(model: nn.Module, example: Any) -> list[Tensor]:
    """The tensors that a network makes of an example."""
    if isinstance(example, tuple):
        named = example[-1] if isinstance(example[-1], dict) else {}
        out = model(*(part for part in example if not isinstance(part, dict)), **named)
    else:
        out = model(**example) if isinstance(example, dict) else model(example)
    return list(out.values()) if isinstance(out, dict) else [out]


def _as(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: _as(part, dtype) for key, part in value.items()}
    return tuple(_as(part, dtype) for part in value) if isinstance(value, tuple) else value

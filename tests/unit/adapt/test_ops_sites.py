"""Where networks can grow, and what is told where they cannot."""

import warnings
from typing import Any

import pytest
import torch
from tests.netzoo import ConvNet2, network
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from gpuyard.adapt.ops import Refused, deepen, rollback, sites, widen
from gpuyard.errors import UserError

torch.set_num_threads(1)
IMAGES = torch.randn(4, 3, 8, 8)
ROWS = torch.randn(4, 8)


def told(model: nn.Module, example: Any, name: str, op: str = "deepen") -> str:
    """Why a layer cannot grow; `deepen` and `widen` must say the same."""
    reason = next(site.why_not for site in sites(model, example, ops=(op,)) if site.name == name)
    with pytest.raises(Refused) as refusal:
        (deepen if op == "deepen" else widen)(model, name, example=example)
    assert str(refusal.value) == reason
    return reason


def test_the_seeds_network_has_its_convolutions_first_and_grows_as_told() -> None:
    model, example = network("convnet2")
    assert sum(parameter.numel() for parameter in model.parameters()) == 10_602
    found = sites(model, example)
    assert [(site.name, site.kind, site.style, site.head) for site in found] == [
        ("conv1", "conv2d", "identity", False),
        ("conv2", "conv2d", "identity", False),
        ("fc", "linear", "residual", True),
    ]
    assert [site.position for site in found] == [0.0, 0.5, 1.0]
    for expected in (19_914, 29_226, 38_538):
        assert deepen(model, "conv2", example=example).parameters_after == expected
        assert [site.name for site in sites(model, example)] == ["conv1", "conv2", "fc"]


def test_blocks_are_sites_and_layers_that_feed_their_sum_are_not() -> None:
    model, example = network("resnet")
    found = {site.name: site for site in sites(model, example)}
    assert found["layer2.0"].kind == "residual"
    assert found["layer2.0"].style == "copy"
    assert found["layer2.0.conv1"].style == "identity"
    assert "deepen its block 'layer2.0' instead" in found["layer2.0.conv2"].why_not
    model, example = network("transformer")
    found = {site.name: site for site in sites(model, example)}
    assert (found["blocks.0"].kind, found["blocks.0"].style) == ("transformer", "copy")
    assert "is a Embedding" in found["embed"].why_not


def test_sites_come_in_order_of_execution() -> None:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.middle, self.first = nn.Linear(8, 2), nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(F.relu(self.middle(F.relu(self.first(x)))))  # type: ignore[no-any-return]

    assert [site.name for site in sites(Backwards(), ROWS)] == ["first", "middle", "last"]


@pytest.mark.parametrize(
    ("op", "name", "reason"),
    [
        ("widen", "layer1.0.conv2", "reach an addition"),
        ("widen", "stem.0", "reach an addition"),
        ("widen", "fc", "the network's outputs"),
    ],
)
def test_widening_is_refused_where_channels_are_needed_as_they_are(op: str, name: str, reason: str) -> None:
    assert reason in told(*network("resnet"), name, op)


def test_widening_names_what_the_channels_reach() -> None:
    model, example = network("branches")
    assert "a concatenation ('cat')" in told(model, example, "one", "widen")
    assert "'group_norm', a GroupNorm" in told(model, example, "point", "widen")
    assert "in 2 groups" in told(model, example, "grouped", "widen")
    normed = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))
    assert "'1', a LayerNorm" in told(normed, ROWS, "0", "widen")


def test_even_kernels_and_unknown_layers() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 2),
        nn.ReLU(),
        nn.Conv2d(4, 4, (3, 4)),
        nn.ReLU(),
        nn.ConvTranspose2d(4, 4, 3),
        nn.Conv2d(4, 4, 1),
    )
    assert "kernel of 2x2: an identity needs a middle" in told(model, IMAGES, "0")
    assert "kernel of 3x4" in told(model, IMAGES, "2")
    assert "is a ConvTranspose2d" in told(model, IMAGES, "4")
    assert "is a ConvTranspose2d" in told(model, IMAGES, "4", "widen")


def test_layers_that_are_used_twice() -> None:
    layer = nn.Linear(8, 8)
    model = nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(8, 2))
    for op in ("deepen", "widen"):
        assert "is used 2 times in one pass" in told(model, ROWS, "0", op)

    class TwoNames(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(8, 8)
            self.other = self.one

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.one(x))

    assert "stands at 2 places" in told(TwoNames(), ROWS, "one")


def test_weights_that_are_computed_or_shared() -> None:
    normed = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), nn.ReLU(), nn.Linear(8, 2))
    assert "computed from others" in told(normed, ROWS, "0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        older = nn.Sequential(nn.utils.weight_norm(nn.Linear(8, 8)), nn.ReLU(), nn.Linear(8, 2))
    assert "computed from others" in told(older, ROWS, "0")
    tied = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    tied[2].weight = tied[0].weight
    assert "shares its weights with" in told(tied, ROWS, "0", "widen")


def test_a_layer_that_the_network_reaches_by_another_way_is_left_alone() -> None:
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 2)
            self.parts = [self.one, self.two]

        def forward(self, x: Tensor) -> Tensor:
            return self.parts[1](F.relu(self.parts[0](x)))  # type: ignore[no-any-return]

    model = Hidden()
    before = list(model.state_dict())
    with pytest.raises(Refused, match="does not use what stands at 'one'"):
        deepen(model, "one", example=ROWS)
    assert list(model.state_dict()) == before


def test_where_tracing_fails_sequentials_still_grow() -> None:
    model, example = network("untraceable")
    found = {site.name: site for site in sites(model, example)}
    assert [name for name, site in found.items() if not site.why_not] == [
        "features.0.0", "features.1.conv1", "features.1", "features.2", "head.0", "head.2"
    ]  # fmt: skip
    assert "torch.fx cannot trace the network" in found["lonely"].why_not


def test_an_outer_layer_larger_than_itself_is_refused() -> None:
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 50))
    assert "larger than itself" in told(model, ROWS, "2")


def test_wrapped_networks_and_wrong_inputs() -> None:
    model = ConvNet2()
    with pytest.raises(Refused, match=r"wrapped in DataParallel: grow its \.module"):
        sites(nn.DataParallel(model), IMAGES)
    with pytest.raises(UserError, match="a dict cannot grow"):
        sites({}, IMAGES)  # type: ignore[arg-type]
    with pytest.raises(Refused, match="does not run on the example"):
        sites(model, torch.randn(2, 5))
    with pytest.raises(UserError, match="the example is a str"):
        sites(model, "image")
    with pytest.raises(UserError, match="did you mean 'deepen'"):
        sites(model, IMAGES, ops=("deep",))
    with pytest.raises(Refused, match="did you mean 'conv1'"):
        deepen(model, "conv11", example=IMAGES)
    with pytest.raises(UserError, match="did you mean 'residual'"):
        deepen(model, "conv1", example=IMAGES, style="residuel")
    with pytest.raises(UserError, match="is one to widen, not to deepen"):
        deepen(model, sites(model, IMAGES, ops=("widen",))[0], example=IMAGES)
    with pytest.raises(Refused, match="do not know their sizes"):
        sites(nn.Sequential(nn.LazyLinear(3), nn.ReLU()), ROWS)
    for more in ({"factor": 0.5}, {"to": 3}, {"factor": float("nan")}):
        with pytest.raises(UserError, match="widening wants more"):
            widen(model, "conv1", example=IMAGES, **more)


def test_a_compiled_network_is_refused() -> None:
    class Compiled(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self._orig_mod = model

    with pytest.raises(Refused, match="compile it again"):
        sites(Compiled(ConvNet2()), IMAGES)


@pytest.mark.parametrize(
    ("shape", "forward"),
    [
        ((4, 3, 8, 8), lambda m, x: m.b(F.relu(m.a(x)).mean((2, 3)))),
        ((4, 3, 8, 8), lambda m, x: m.b(F.relu(m.a(x)).permute(0, 2, 3, 1)).mean((1, 2))),
        ((4, 3, 8, 8), lambda m, x: m.b(F.adaptive_max_pool2d(F.relu(m.a(x)), 1).squeeze(-1).squeeze(-1) * 2.0)),
    ],
)
def test_channels_are_followed_over_other_axes(shape: tuple[int, ...], forward: Any) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 6, 3), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return forward(self, x)  # type: ignore[no-any-return]

    model = Net()
    x = torch.randn(shape)
    before = model(x)
    widen(model, "a", example=x, to=11)
    assert (model.a.out_channels, model.b.in_features) == (11, 11)
    assert torch.allclose(model(x), before, atol=1e-6)


def test_sizes_written_into_the_code_are_refused() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 6, 3), nn.Linear(6 * 36, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(F.relu(self.a(x)).view(-1, 6 * 36))  # type: ignore[no-any-return]

    assert "reach 'view'" in told(Fixed(), IMAGES, "a", "widen")
    assert deepen(Fixed(), "a", example=IMAGES).style == "identity"


def test_without_an_example_one_is_guessed() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
    network(torch.zeros(1, 3, 32, 32))
    assert next(site.name for site in sites(network)) == "0"
    assert network.training
    with pytest.raises(UserError, match="a guess: give an example"):
        sites(nn.Sequential(nn.Linear(4, 4), nn.Unflatten(1, (3, 3))))
    with pytest.raises(UserError, match="it cannot be guessed"):
        sites(nn.ReLU())


def test_an_example_must_hold_something() -> None:
    with pytest.raises(UserError, match="the example has no rows"):
        deepen(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), "0", example=torch.zeros(0, 4))
    with torch.inference_mode(), pytest.raises(UserError, match="inference_mode"):
        sites(nn.Linear(4, 4), torch.zeros(2, 4))
    with pytest.raises(UserError, match="rollback takes what deepen or widen returned"):
        rollback(nn.Linear(4, 4), None)  # type: ignore[arg-type]

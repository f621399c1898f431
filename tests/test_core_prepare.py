"""prepare and convert on nets the project did not write."""

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import stompp
from stompp import Binarize, UsageError
from stompp.core.layers import BINARY_LAYERS, BinaryActivation, BinaryConv2d, BinaryLinear, Clip, Sign
from stompp.core.trace import ACTIVATIONS

BWN = Binarize(activations="clip")
STE = Binarize(weights="ste", activations="ste")


class SharedReluBlock(nn.Module):
    """A basic block as torchvision writes it: one in-place ReLU, called twice."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = None
        if stride != 1 or inputs != width:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class SharedReluResNet(nn.Module):
    """ResNet-18 with a CIFAR stem and torchvision's names; `width` makes it small."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        inputs = width
        for i in range(4):
            first = SharedReluBlock(inputs, width << i, 1 if i == 0 else 2)
            setattr(self, f"layer{i + 1}", nn.Sequential(first, SharedReluBlock(width << i, width << i, 1)))
            inputs = width << i
        self.fc = nn.Linear(inputs, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


class FunctionalNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body, self.head = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.body(F.relu(self.stem(x)))))


def mlp(width: int = 6, inner: int = 1) -> nn.Sequential:
    torch.manual_seed(0)
    body = [m for _ in range(inner) for m in (nn.ReLU(), nn.Linear(width, width))]
    return nn.Sequential(nn.Linear(width, width), *body, nn.ReLU(), nn.Linear(width, 2))


def grouped() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8), nn.ReLU6(),
        nn.Conv2d(8, 12, 1, groups=4), nn.BatchNorm2d(12), nn.SiLU(),
        nn.Conv2d(12, 8, 3, stride=2, dilation=2, padding=2, padding_mode="circular"), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip


def vgg() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8),
        nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 16), nn.ReLU(inplace=True), nn.Dropout(0.0), nn.Linear(16, 5),
    )  # fmt: skip


def conv1d() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.GELU(), nn.Conv1d(4, 6, 3, 2), nn.BatchNorm1d(6), nn.Tanh(),
        nn.Flatten(), nn.Linear(6 * 6, 3),
    )  # fmt: skip


def conv3d() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ELU(), nn.Conv3d(4, 4, 3, padding=1), nn.BatchNorm3d(4),
        nn.LeakyReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip


# name -> (net, shape of one sample, sites of the BNN, sites of the BWN)
FOREIGN = {
    "shared relu": (lambda: SharedReluResNet(4), (3, 8, 8), 33, 16),
    "grouped": (grouped, (3, 8, 8), 7, 3),
    "vgg": (vgg, (3, 8, 8), 7, 3),
    "mlp": (lambda: mlp(inner=3), (6,), 7, 3),
    "conv1d": (conv1d, (2, 16), 3, 1),
    "conv3d": (conv3d, (1, 4, 4, 4), 3, 1),
}


def train(net: nn.Module, images: Tensor, steps: int = 40, order: str = "layerwise") -> stompp.Freezer:
    freezer = stompp.Freezer(net, steps, order=order, refresh=2)
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    for t in range(steps):
        freezer.step(t)
        optimizer.zero_grad()
        net(images).square().mean().backward()
        optimizer.step()
    return freezer


@pytest.mark.filterwarnings("ignore:layer .* stays float")
@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_nets_train_prove_and_convert(name):
    make, shape, bnn, bwn = FOREIGN[name]
    images = torch.randn(4, *shape)
    for config, count in ((Binarize(), bnn), (BWN, bwn), (Binarize(activations="relu"), bwn)):
        torch.manual_seed(0)
        net = make()
        keys = list(net.state_dict())
        parameters = list(net.parameters())
        stompp.prepare(net, images[:2], config)
        assert len(stompp.sites(net)) == count
        assert [site.position for site in stompp.sites(net)] == list(range(count))
        assert list(net.state_dict()) == keys
        assert all(a is b for a, b in zip(net.parameters(), parameters))
        train(net, images)
        proof = stompp.assert_binary(net, images)
        assert proof.layers == bwn
        assert proof.weights == sum(m.weight.numel() for m in net.modules() if hasattr(m, "site"))
        assert (proof.inputs > 0) == config.binary_activations
        net.eval()
        before = net(images)
        stompp.convert(net)
        assert torch.equal(net(images), before)
        assert stompp.assert_binary(net, images) == proof
        assert list(net.state_dict()) == keys


def test_shared_relu_resnet_has_the_sites_of_ours_in_the_same_order():
    theirs = stompp.prepare(SharedReluResNet(4), torch.zeros(1, 3, 8, 8))
    ours = stompp.prepare(stompp.models.resnet18(), torch.zeros(1, 3, 8, 8))

    def plain(model: nn.Module) -> list[tuple[str, str]]:
        names = [(site.name, site.kind) for site in stompp.sites(model)]
        return [(n.replace("#0", "1").replace("#1", "2"), kind) for n, kind in names]

    assert plain(theirs) == plain(ours)
    for a, b in zip(stompp.sites(theirs), stompp.sites(ours)):
        assert a.shape[-2:] == b.shape[-2:]


@pytest.mark.parametrize("shared", ["one parent, two names", "two parents", "sequential"])
def test_one_activation_under_several_names_is_swapped_everywhere(shared):
    relu = nn.ReLU()
    if shared == "sequential":
        net = nn.Sequential(nn.Linear(4, 4), relu, nn.Linear(4, 4), relu, nn.Linear(4, 2))
    else:

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
                if shared == "two parents":
                    self.one, self.two = nn.Sequential(relu), nn.Sequential(relu)
                else:
                    self.one = self.two = relu

            def forward(self, x: Tensor) -> Tensor:
                return self.c(self.two(self.b(self.one(self.a(x)))))

        net = Net()
    stompp.prepare(net, torch.zeros(1, 4))
    assert not any(isinstance(m, nn.ReLU) for m in net.modules())
    assert [site.kind for site in stompp.sites(net)] == ["activation", "weight", "activation"]
    train(net, torch.randn(4, 4))
    stompp.convert(net)
    assert not any(isinstance(m, BinaryActivation) for m in net.modules())
    assert stompp.assert_binary(net, torch.randn(4, 4)).layers == 1


def test_shared_activation_uses_the_right_site_after_an_interrupted_forward():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c, self.relu = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2), nn.ReLU()
            self.fail = False

        def forward(self, x: Tensor) -> Tensor:
            x = self.b(self.relu(self.a(x)))
            if self.fail:
                raise RuntimeError("interrupted")
            return self.c(self.relu(x))

    torch.manual_seed(0)
    net = stompp.prepare(Net(), torch.zeros(1, 4))
    first = next(site for site in stompp.sites(net) if site.kind == "activation")
    first.freeze()
    x = torch.randn(3, 4)
    good = net(x)
    net.fail = True
    with pytest.raises(RuntimeError, match="interrupted"):
        net(x)
    net.fail = False
    assert torch.equal(net(x), good)
    copied = copy.deepcopy(net)
    assert torch.equal(copied(x), good)


def test_functional_activation_is_an_error_that_names_the_layer():
    net = FunctionalNet()
    with pytest.raises(UsageError, match=r"'body.0'.*'FunctionalNet' calls the function relu\(\).*nn.ReLU\(\)"):
        stompp.prepare(net, torch.zeros(1, 4))
    with pytest.warns(UserWarning, match=r"'FunctionalNet' calls the function relu\(\), which stays as it is"):
        stompp.prepare(net, torch.zeros(1, 4), BWN)
    assert [site.name for site in stompp.sites(net)] == ["body.0.weight"]


def test_functional_activation_before_a_float_layer_is_a_warning():
    class Net(FunctionalNet):
        def __init__(self) -> None:
            super().__init__()
            self.relu = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(self.relu(self.stem(x))).relu())

    with pytest.warns(UserWarning, match=r"'Net' calls the function relu\(\), which stays"):
        stompp.prepare(Net(), torch.zeros(1, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stompp.prepare(Net(), torch.zeros(1, 4), Binarize(activations="relu"))  # asked to stay


def test_layer_with_real_input_is_an_error_that_names_it():
    net = nn.Sequential(
        nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 2)
    )
    with pytest.raises(UsageError, match=r"layer '4' would not be binary: its input has 8 of 8 entries other than ±1"):
        stompp.prepare(net, torch.randn(2, 4))
    stompp.prepare(net, torch.randn(2, 4), skip=lambda n, m: stompp.paper_policy(n, m) or n == "4")
    assert [site.name for site in stompp.sites(net)] == ["1", "2.weight"]


def encoder() -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.TransformerEncoder(layer, 2)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.encoder, self.head = nn.Linear(8, 16), encoder(), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x)).mean(1))


def keep_attention(name: str, module: nn.Module) -> bool:
    return stompp.paper_policy(name, module) or "out_proj" in name


@pytest.mark.filterwarnings("ignore:'encoder.layers.* calls the function relu")
def test_transformer_encoder_trains_with_binary_weights_and_no_fused_path_bypasses_them():
    torch.manual_seed(0)
    net = Classifier()
    stompp.prepare(net, torch.zeros(2, 5, 8), BWN, skip=keep_attention)
    names = [f"encoder.layers.{i}.linear{j}.weight" for i in range(2) for j in (1, 2)]
    assert [site.name for site in stompp.sites(net)] == names
    x = torch.randn(4, 5, 8)
    train(net, x)
    called = []
    for module in net.modules():
        if isinstance(module, BinaryLinear):
            module.register_forward_hook(lambda *_: called.append(1))
    net.eval()
    with torch.no_grad():
        without_hooks = copy.deepcopy(net)
        for module in without_hooks.modules():
            module._forward_hooks.clear()
        fused = without_hooks(x)
        plain = net(x)
        assert len(called) == 4
    assert torch.allclose(fused, plain, atol=1e-6)
    assert torch.allclose(net(x), plain, atol=1e-6)  # with gradients there is no fused path in any case
    for module in without_hooks.modules():  # and the latent weights do compute something else
        if isinstance(module, BinaryLinear):
            module.site.reset()
    assert not torch.allclose(without_hooks(x), plain, atol=1e-2)


def test_transformer_encoder_as_bnn_is_a_clear_error_and_stays_as_it_was():
    net = Classifier()
    before = {k: v for m in net.modules() for k, v in vars(m).items() if k in ("activation_relu_or_gelu",)}
    nested = net.encoder.use_nested_tensor
    with pytest.raises(UsageError, match=r"layer 'encoder.layers.0.linear1' .*would not be binary: its input has"):
        stompp.prepare(net, torch.randn(2, 5, 8), skip=keep_attention)
    assert net.encoder.use_nested_tensor == nested
    assert before["activation_relu_or_gelu"]
    assert all(layer.activation_relu_or_gelu == 1 for layer in net.encoder.layers)


def test_tied_weights_share_one_site_and_stay_tied():
    net = mlp(inner=3)
    net[4].weight = net[2].weight
    stompp.prepare(net, torch.zeros(1, 6))
    assert [site.name for site in stompp.sites(net)] == ["1", "2.weight", "3", "5", "6.weight", "7"]
    assert net[2].site is net[4].site
    train(net, torch.randn(4, 6))
    x = torch.randn(2, 6)
    before = net(x)
    stompp.convert(net)
    assert net[2].weight is net[4].weight
    assert torch.equal(net(x), before)


def test_layer_called_twice_is_one_site():
    net = nn.Sequential(
        nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)
    )
    net[4] = net[2]
    stompp.prepare(net, torch.zeros(1, 4))
    assert [site.name for site in stompp.sites(net)] == ["1", "2.weight", "3", "5"]
    assert net[4] is net[2]


def test_layer_never_called_stays_float_with_a_warning():
    class Net(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            for i in (0, 1, 2, 3, 5):
                x = self[i](x)
            return x

    def make() -> nn.Module:
        torch.manual_seed(0)
        return Net(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 2))

    with pytest.warns(UserWarning, match="layer '4' stays float: the example's forward pass never calls it"):
        net = stompp.prepare(make(), torch.zeros(1, 4))
    assert type(net[4]) is nn.Linear
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stompp.prepare(make(), torch.zeros(1, 4), skip=lambda n, m: stompp.paper_policy(n, m) or n == "4")


def test_warning_made_an_error_leaves_the_model_as_it_was():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    net[0].spare = nn.Linear(2, 2)
    modules = list(net.modules())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match=r"'0\.spare' stays float"):
            stompp.prepare(net, torch.zeros(1, 4))
    assert list(net.modules()) == modules


class OwnLinear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2


def test_layers_of_their_own_kind_stay_float_with_a_warning_and_count_as_first_and_last():
    net = mlp(inner=2)
    net[2] = OwnLinear(6, 6)
    with pytest.warns(UserWarning, match="layer '2' stays float: it is a OwnLinear, a layer of its own kind"):
        stompp.prepare(net, torch.zeros(1, 6))
    assert [site.name for site in stompp.sites(net)] == ["1", "3", "4.weight", "5"]
    net = mlp(inner=2)
    net[0], net[6] = OwnLinear(6, 6), OwnLinear(6, 2)
    stompp.prepare(net, torch.zeros(1, 6))  # the first and the last, float anyway: nothing to warn of
    assert [site.name for site in stompp.sites(net)] == ["1", "2.weight", "3", "4.weight", "5"]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "norm", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm, nn.utils.weight_norm]
)
def test_parametrized_layer_is_an_error_unless_skipped(norm):
    def make() -> nn.Module:
        net = mlp()
        norm(net[2])
        return net

    net = make()
    keys = list(net.state_dict())
    with pytest.raises(UsageError, match=r"layer '2' has a parametrization.*remove_parametrizations, or skip"):
        stompp.prepare(net, torch.zeros(1, 6))
    assert list(net.state_dict()) == keys
    stompp.prepare(make(), torch.zeros(1, 6), skip=lambda n, m: stompp.paper_policy(n, m) or n == "2")


def test_module_kept_in_a_list_beside_is_an_error_that_names_the_site():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
            self.path = [self.a, self.b, self.c]

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.path:
                x = layer(x)
            return x

    net = Net()
    with pytest.raises(UsageError, match=r"site 'b\.weight' would never be reached.*nn.ModuleList"):
        stompp.prepare(net, torch.zeros(1, 4), Binarize(activations="relu"))
    assert type(net.b) is nn.Linear


@pytest.mark.parametrize("failing", ["functional", "example"])
def test_failed_prepare_leaves_the_model_exactly_as_it_was(failing):
    net = FunctionalNet()
    net.body[0].register_forward_hook(lambda *_: None)
    net.stem.eval()
    modules = dict(net.named_modules())
    state = copy.deepcopy(net.state_dict())
    hooks = {n: len(m._forward_hooks) + len(m._forward_pre_hooks) for n, m in modules.items()}
    modes = {n: m.training for n, m in modules.items()}
    with pytest.raises((UsageError, RuntimeError)):
        stompp.prepare(net, torch.zeros(1, 4 if failing == "functional" else 5))
    after = dict(net.named_modules())
    assert after.keys() == modules.keys()
    assert all(after[name] is modules[name] for name in modules)
    assert {n: len(m._forward_hooks) + len(m._forward_pre_hooks) for n, m in after.items()} == hooks
    assert {n: m.training for n, m in after.items()} == modes
    assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), state.values()))


def test_prepare_changes_no_value_no_mode_and_no_random_state():
    torch.manual_seed(0)
    net = vgg()
    net[3].eval()
    state, modes = copy.deepcopy(net.state_dict()), [m.training for m in net.modules()]
    torch.manual_seed(5)
    stompp.prepare(net, torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1)))
    drawn = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(1))
    assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), state.values()))
    assert [m.training for m in net] == modes[1:]


def test_prepare_twice_is_an_error():
    net = stompp.prepare(mlp(), torch.zeros(1, 6))
    with pytest.raises(UsageError, match=r"prepared already \('1' has a site\)"):
        stompp.prepare(net, torch.zeros(1, 6))
    assert len(stompp.sites(net)) == 3
    train(net, torch.randn(2, 6))
    with pytest.raises(UsageError, match="prepared already"):
        stompp.prepare(stompp.convert(net), torch.zeros(1, 6))


@pytest.mark.parametrize("model", [nn.Linear(2, 2), nn.Conv2d(1, 1, 1), nn.ReLU()])
def test_bare_layer_is_an_error_that_says_to_wrap_it(model):
    with pytest.raises(UsageError, match=r"cannot be swapped in place: wrap it in nn\.Sequential"):
        stompp.prepare(model, torch.zeros(1, 2))


def test_hooks_and_flags_survive_prepare_and_convert():
    net = mlp()
    seen = []
    handles = [net[i].register_forward_hook(lambda m, a, o: seen.append(type(m))) for i in (1, 2)]
    net[2].register_forward_pre_hook(lambda m, a: seen.append("pre"))
    net[2].note = "kept"
    net[2].weight.requires_grad_(False)
    net[2].bias.requires_grad_(False)
    stompp.prepare(net, torch.zeros(1, 6))
    assert not net[2].weight.requires_grad
    assert not net[2].bias.requires_grad
    assert net[2].note == "kept"
    seen.clear()
    net(torch.zeros(1, 6))
    assert seen == [BinaryActivation, "pre", BinaryLinear]
    train(net, torch.randn(2, 6), 6)
    stompp.convert(net)
    seen.clear()
    net(torch.zeros(1, 6))
    assert seen == [Sign, "pre", BinaryLinear]
    for handle in handles:
        handle.remove()
    seen.clear()
    net(torch.zeros(1, 6))
    assert seen == ["pre"]


def test_layers_called_by_keyword_are_seen():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.relu, self.b, self.c = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
            return self.c(input=self.b(input=self.relu(input=self.a(input=x)))) * scale

    net = stompp.prepare(Net(), {"x": torch.zeros(1, 4), "scale": 2.0})
    assert [site.name for site in stompp.sites(net)] == ["relu", "b.weight"]
    assert stompp.assert_binary(net, (torch.zeros(3, 4),)).inputs == 12


def test_skip_names_layers_and_activations():
    asked = []
    net = mlp(inner=3)
    stompp.prepare(
        net, torch.zeros(1, 6), skip=lambda n, m: asked.append((n, type(m))) or n in ("0", "4", "5", "6", "8")
    )
    assert ("5", nn.ReLU) in asked
    assert [site.name for site in stompp.sites(net)] == ["1", "2.weight", "3", "7"]
    assert type(net[5]) is nn.ReLU


def test_skip_none_makes_every_layer_a_site():
    net = mlp(inner=2)
    with pytest.raises(UsageError, match="layer '0' would not be binary"):
        stompp.prepare(net, torch.zeros(1, 6), skip=None)
    stompp.prepare(net, torch.zeros(1, 6), BWN, skip=None)
    assert [site.name for site in stompp.sites(net)] == ["0.weight", "2.weight", "4.weight", "6.weight"]


def test_paper_policy_outside_prepare_is_an_error():
    with pytest.raises(UsageError, match=r"pass it .* as skip="):
        stompp.paper_policy("x", nn.Linear(1, 1))


def test_paper_policy_keeps_projections_by_name_in_any_model():
    class Block(nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.relu, self.conv = nn.ReLU(), nn.Conv2d(2, 2, 1)
            setattr(self, name, nn.Sequential(nn.Conv2d(2, 2, 1)))
            self.side = name

        def forward(self, x: Tensor) -> Tensor:
            x = self.relu(x)
            return self.conv(x) + getattr(self, self.side)(x)

    for name in ("downsample", "shortcut", "projection", "skip", "conv_shortcut", "other"):
        net = nn.Sequential(nn.Conv2d(1, 2, 1), Block(name), nn.Flatten(), nn.Linear(8, 2))
        stompp.prepare(net, torch.zeros(1, 1, 2, 2))
        expected = ["1.relu", "1.conv.weight"] + (["1.other.0.weight"] if name == "other" else [])
        assert [site.name for site in stompp.sites(net)] == expected


@pytest.mark.parametrize("argument", ["weights", "activations", "frozen_grad", "surrogate"])
def test_binarize_refuses_unknown_choices_and_lists_the_known(argument):
    with pytest.raises(UsageError, match=rf"Binarize\({argument}='x'\): {argument} is one of '"):
        Binarize(**{argument: "x"})


def test_binarize_decides_phase_and_surrogate_of_every_site():
    table = {  # (weights, activations, frozen_grad): (weight surrogate, scheduled), (activation surrogate, scheduled)
        ("stompp", "stompp", "zero"): ((None, True), (None, True)),
        ("ste", "ste", "zero"): (("identity", False), ("clip", False)),
        ("ste", "stompp", "zero"): (("identity", False), (None, True)),
        ("stompp", "ste", "zero"): ((None, True), ("clip", False)),
        ("stompp", "stompp", "ste"): (("identity", True), ("clip", True)),
        ("stompp", "clip", "zero"): ((None, True), None),
        ("stompp", "relu", "ste"): (("identity", True), None),
        ("ste", "relu", "zero"): (("identity", False), None),
        ("float", "stompp", "zero"): (None, (None, True)),
        ("float", "ste", "zero"): (None, ("clip", False)),
        ("float", "clip", "zero"): (None, None),
        ("float", "relu", "zero"): (None, None),
    }
    for (weights, activations, frozen_grad), expected in table.items():
        net = stompp.prepare(mlp(), torch.zeros(1, 6), Binarize(weights, activations, frozen_grad, "clip"))
        found = {s.kind: (s.surrogate, s.scheduled) for s in stompp.sites(net, scheduled=False)}
        assert (found.get("weight"), found.get("activation")) == expected
        for site in stompp.sites(net, scheduled=False):
            assert site.phase == ("open" if site.scheduled else "frozen")
        kind = Clip if activations == "clip" else nn.ReLU if activations == "relu" else BinaryActivation
        assert type(net[1]) is kind


def test_convert_refuses_unfinished_sites_unless_early():
    net = stompp.prepare(mlp(), torch.zeros(1, 6))
    freezer = stompp.Freezer(net, 30, refresh=1)
    freezer.step(0)
    with pytest.raises(UsageError, match=r"site '1' is moving.*pass early=True"):
        stompp.convert(net)
    assert isinstance(net[1], BinaryActivation)
    x = torch.randn(3, 6)
    with stompp.fully_binary(net):
        view = net(x)
    stompp.convert(net, early=True)
    assert torch.equal(net(x), view)
    assert set(net[2].weight.unique().tolist()) <= {-1.0, 1.0}
    assert not net[2].weight.requires_grad
    assert stompp.sites(net, scheduled=False) == []


def test_to_float_gives_back_a_plain_layer_with_the_same_parameters():
    net = stompp.prepare(vgg(), torch.zeros(1, 3, 8, 8))
    layer = net[2]
    assert isinstance(layer, BinaryConv2d)
    plain = layer.to_float()
    assert type(plain) is nn.Conv2d
    assert plain.weight is layer.weight
    assert not hasattr(plain, "site")
    x = torch.randn(1, 8, 4, 4)
    assert torch.equal(plain(x), layer(x))  # open: the weight itself
    assert set(BINARY_LAYERS) == {nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_known_activation_becomes_a_site(activation):
    net = nn.Sequential(nn.Linear(3, 3), activation(), nn.Linear(3, 3), activation(), nn.Linear(3, 2))
    stompp.prepare(net, torch.zeros(1, 3))
    assert [site.name for site in stompp.sites(net)] == ["1", "2.weight", "3"]


class TestMisuse:
    def test_nothing_left_to_make_binary(self) -> None:
        with pytest.raises(UsageError, match="nothing in the model would become binary"):
            stompp.prepare(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.zeros(1, 2), skip=lambda name, module: True)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"config": "stompp"}, "it must be a stompp.Binarize"),
            ({"skip": ["0"]}, "it must be a function"),
        ],
    )
    def test_arguments_of_the_wrong_kind(self, arguments: dict, message: str) -> None:
        with pytest.raises(UsageError, match=message):
            stompp.prepare(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.zeros(1, 2), **arguments)

    def test_compiled_models_are_refused_before_and_seen_through_after(self) -> None:
        def net() -> nn.Module:
            return nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))

        x = torch.zeros(1, 2)
        with pytest.raises(UsageError, match="prepare it first, then"):
            stompp.prepare(torch.compile(net(), backend="eager"), x)
        prepared = stompp.prepare(net(), x)
        compiled = torch.compile(prepared, backend="eager")
        assert stompp.assert_binary(compiled, x) == stompp.assert_binary(prepared, x)
        assert str(stompp.summary(compiled, x)) == str(stompp.summary(prepared, x))

"""Our networks against PyTorch's, on the same random weights: written by torch.save, read by ours.

PyTorch's networks are written down here once more, in the layout of the published weights.
"""

import keras
import numpy as np
import pytest

from tests.models import pth, recorded
from tfrank.models.backbones import network
from tfrank.models.embedding import embedding_model
from tfrank.models.pooling import GeM, InnerAveragePooling2D
from tfrank.models.pytorch_files import read_state_dict
from tfrank.models.weights import load_backbone_weights

torch = pytest.importorskip("torch", reason="extra bench")
nn = torch.nn
functional = torch.nn.functional


class Bottleneck(nn.Module):
    def __init__(self, inputs, filters, strides, squeeze):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, filters, 1, stride=strides[0], bias=False)
        self.bn1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, stride=strides[1], padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(filters)
        self.conv3 = nn.Conv2d(filters, 4 * filters, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * filters)
        self.squeeze = squeeze
        if squeeze:
            self.se_module = nn.Module()
            self.se_module.fc1 = nn.Conv2d(4 * filters, filters // 4, 1)
            self.se_module.fc2 = nn.Conv2d(filters // 4, 4 * filters, 1)
        self.downsample = None
        if inputs != 4 * filters:
            shortcut = nn.Conv2d(inputs, 4 * filters, 1, stride=max(strides), bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(4 * filters))

    def forward(self, x):
        y = functional.relu(self.bn1(self.conv1(x)))
        y = functional.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        if self.squeeze:
            means = y.mean(dim=(2, 3), keepdim=True)
            y = y * torch.sigmoid(self.se_module.fc2(functional.relu(self.se_module.fc1(means))))
        return functional.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """torchvision's ResNet with a bottleneck, or with `squeeze` the SE-ResNet of pretrainedmodels."""

    def __init__(self, blocks, squeeze=False):
        super().__init__()
        conv, norm = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(64)
        if squeeze:
            self.layer0 = nn.Module()
            self.layer0.conv1, self.layer0.bn1 = conv, norm
            self.pool = nn.MaxPool2d(3, stride=2, ceil_mode=True)
            self.last_linear = nn.Linear(2048, 1000)
        else:
            self.conv1, self.bn1 = conv, norm
            self.pool = nn.MaxPool2d(3, stride=2, padding=1)
            self.fc = nn.Linear(2048, 1000)
        self.stem = lambda x: self.pool(functional.relu(norm(conv(x))))
        inputs = 64
        for stage, number in enumerate(blocks):
            filters, layers = 64 * 2**stage, []
            for block in range(number):
                stride = 2 if stage and not block else 1
                strides = (stride, 1) if squeeze else (1, stride)
                layers.append(Bottleneck(inputs, filters, strides, squeeze))
                inputs = 4 * filters
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layers))

    def forward(self, x):
        return [self.layer4(self.layer3(self.layer2(self.layer1(self.stem(x)))))]


class BNInception(nn.Module):
    """The network of the state dict `bn_inception`: input channels, then the filters of each block."""

    blocks = (
        ("3a", 192, 64, 64, 64, 64, 96, 32),
        ("3b", 256, 64, 64, 96, 64, 96, 64),
        ("3c", 320, None, 128, 160, 64, 96, None),
        ("4a", 576, 224, 64, 96, 96, 128, 128),
        ("4b", 576, 192, 96, 128, 96, 128, 128),
        ("4c", 576, 160, 128, 160, 128, 160, 128),
        ("4d", 608, 96, 128, 192, 160, 192, 128),
        ("4e", 608, None, 128, 192, 192, 256, None),
        ("5a", 1056, 352, 192, 320, 160, 224, 128),
        ("5b", 1024, 352, 192, 320, 192, 224, 128),
    )

    def __init__(self):
        super().__init__()
        self.add("conv1_7x7_s2", 3, 64, 7, 2)
        self.add("conv2_3x3_reduce", 64, 64, 1)
        self.add("conv2_3x3", 64, 192, 3)
        for block, inputs, single, reduce3, out3, reduce_double, out_double, projection in self.blocks:
            name, stride = f"inception_{block}_", 1 if single else 2
            if single:
                self.add(f"{name}1x1", inputs, single, 1)
                self.add(f"{name}pool_proj", inputs, projection, 1)
            self.add(f"{name}3x3_reduce", inputs, reduce3, 1)
            self.add(f"{name}3x3", reduce3, out3, 3, stride)
            self.add(f"{name}double_3x3_reduce", inputs, reduce_double, 1)
            self.add(f"{name}double_3x3_1", reduce_double, out_double, 3)
            self.add(f"{name}double_3x3_2", out_double, out_double, 3, stride)
        self.last_linear = nn.Linear(1024, 1000)

    def add(self, name, inputs, outputs, size, stride=1):
        setattr(self, name, nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2))
        setattr(self, f"{name}_bn", nn.BatchNorm2d(outputs))

    def unit(self, x, *names):
        for name in names:
            x = functional.relu(getattr(self, f"{name}_bn")(getattr(self, name)(x)))
        return x

    def forward(self, x):
        halve = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        x = halve(self.unit(x, "conv1_7x7_s2"))
        x = halve(self.unit(x, "conv2_3x3_reduce", "conv2_3x3"))
        maps = []
        for block, _, single, *_ in self.blocks:
            name = f"inception_{block}_"
            branches = [self.unit(x, f"{name}1x1")] if single else []
            branches += [self.unit(x, f"{name}3x3_reduce", f"{name}3x3")]
            double = [f"{name}double_3x3_{part}" for part in ("reduce", "1", "2")]
            branches += [self.unit(x, *double)]
            if not single:
                branches += [halve(x)]
            elif block == "5b":
                pooled = nn.MaxPool2d(3, stride=1, padding=1, ceil_mode=True)(x)
                branches += [self.unit(pooled, f"{name}pool_proj")]
            else:
                pooled = nn.AvgPool2d(3, stride=1, padding=1, ceil_mode=True, count_include_pad=True)(x)
                branches += [self.unit(pooled, f"{name}pool_proj")]
            x = torch.cat(branches, 1)
            if block in ("3c", "4e", "5b"):
                maps.append(x)
        return maps


class InvertedResidual(nn.Module):
    def __init__(self, inputs, outputs, expansion, stride):
        super().__init__()
        inner = inputs * expansion
        self.shortcut = stride == 1 and inputs == outputs
        self.conv = nn.Sequential(
            *([relu6_unit(inputs, inner, 1)] if expansion > 1 else []),
            relu6_unit(inner, inner, 3, stride, inner),
            nn.Conv2d(inner, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, x):
        return self.conv(x) + (x if self.shortcut else 0)


def relu6_unit(inputs, outputs, size, stride=1, groups=1):
    conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU6())


class MobileNetV2(nn.Module):
    """torchvision's: expansion, filters, blocks and stride of each stage."""

    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2))

    def __init__(self):
        super().__init__()
        features, inputs = [relu6_unit(3, 32, 3, 2)], 32
        for expansion, outputs, blocks, stride in (*self.stages, (6, 320, 1, 1)):
            for block in range(blocks):
                features.append(InvertedResidual(inputs, outputs, expansion, 1 if block else stride))
                inputs = outputs
        self.features = nn.Sequential(*features, relu6_unit(inputs, 1280, 1))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 1000))

    def forward(self, x):
        return [self.features(x)]


NETWORKS = {
    "resnet50": lambda: ResNet((3, 4, 6, 3)),
    "resnet101": lambda: ResNet((3, 4, 23, 3)),
    "se_resnet50": lambda: ResNet((3, 4, 6, 3), squeeze=True),
    "bn_inception": BNInception,
    "mobilenet_v2": MobileNetV2,
}
PUBLISHED_COUNTS = {
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "se_resnet50": 28_088_024,
    "bn_inception": 11_295_240,
    "mobilenet_v2": 3_504_872,
}


def random_network(name):
    """PyTorch's network in evaluation mode, its weights and statistics random, none of them special."""
    torch.manual_seed(0)
    net = NETWORKS[name]().double().eval()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.0)
            nn.init.normal_(module.bias, std=0.1)
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return net


@pytest.fixture
def float64():
    before = keras.config.floatx()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(before)
    keras.config.set_dtype_policy(before)


def embeds(backbone):
    """A model that load_backbone_weights takes, of nothing but the backbone."""
    images = keras.Input(backbone.input_shape[1:])
    return keras.Model(images, backbone(images))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_reference_has_the_published_number_of_parameters(name):
    assert sum(weight.numel() for weight in NETWORKS[name]().parameters()) == PUBLISHED_COUNTS[name]


@pytest.mark.parametrize("name", recorded.SIDES)
def test_the_recorded_maps_are_pytorchs(name):
    net = NETWORKS[name]().double().eval()
    shapes = {key: tuple(value.shape) for key, value in net.state_dict().items() if "num_batches" not in key}
    net.load_state_dict(
        {key: torch.tensor(recorded.weight(key, shape)) for key, shape in shapes.items()}, strict=False
    )
    with torch.no_grad():
        maps = net(torch.tensor(recorded.image(recorded.SIDES[name]).transpose(0, 3, 1, 2)))[-1]
    np.testing.assert_allclose(
        recorded.summary(maps.permute(0, 2, 3, 1)), recorded.SUMMARIES[name], rtol=1e-10
    )


@pytest.mark.parametrize("size", [64, 100])
@pytest.mark.parametrize("name", NETWORKS)
def test_maps_equal_pytorchs(name, size, tmp_path, float64):
    """Also at a size where borders matter: 100 halves to 50, 25, 13, 7 and 4."""
    if name == "bn_inception" and size == 100:
        size = 99  # 50, 25, 12: both poolings reach over the border.
    net = random_network(name)
    torch.save(net.state_dict(), tmp_path / "net.pth")
    levels = "LMH" if name == "bn_inception" else ""
    ours = network(name, image_size=size, batch_norm="trained", levels=levels)
    load_backbone_weights(embeds(ours), str(tmp_path / "net.pth"))
    images = np.random.default_rng(0).normal(size=[2, size, size, 3])
    with torch.no_grad():
        wanted = [
            each.permute(0, 2, 3, 1).numpy() for each in net(torch.tensor(images.transpose(0, 3, 1, 2)))
        ]
    maps = ours(images, training=False)
    for ours_map, theirs in zip(maps if levels else [maps], wanted, strict=True):
        assert theirs.std() > 1e-3
        np.testing.assert_allclose(ours_map, theirs, rtol=1e-9, atol=1e-9 * np.abs(theirs).max())


@pytest.mark.parametrize(
    "kind, legacy",
    [
        ("plain", False),
        ("plain", True),
        ("float16", False),
        ("bfloat16", False),
        ("bfloat16", True),
        ("parallel", False),
        ("checkpoint", True),
        ("parameters", False),
    ],
)
def test_every_form_of_file_gives_pytorchs_embeddings_in_float32(kind, legacy, tmp_path):
    net = random_network("resnet50").float()
    if "float" in kind:  # PyTorch's network too gets the rounded weights.
        net = net.to(getattr(torch, kind)).float()
    state = net.state_dict(keep_vars=kind == "parameters")
    if "float" in kind:
        state = {name: value.to(getattr(torch, kind)) for name, value in state.items()}
    if kind == "parallel":
        state = {f"module.{name}": value for name, value in state.items()}
    if kind == "checkpoint":
        state = {
            "epoch": 3,
            "state_dict": state,
            "optimizer": torch.optim.Adam(net.parameters()).state_dict(),
        }
    torch.save(state, tmp_path / "net.pth", _use_new_zipfile_serialization=not legacy)
    model = embedding_model(backbone="resnet50", image_size=64, embedding_dim=8)
    load_backbone_weights(model, str(tmp_path / "net.pth"))
    images = np.random.default_rng(0).uniform(0, 255, [2, 64, 64, 3]).astype("float32")
    mean, deviation = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
    with torch.no_grad():
        maps = net(torch.tensor(((images / 255 - mean) / deviation).transpose(0, 3, 1, 2)))[0]
        kernel, bias = (torch.tensor(weight) for weight in model.get_layer("embedding").get_weights())
        wanted = (maps.mean((2, 3)) @ kernel + bias).numpy()
    np.testing.assert_allclose(model(images), wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("legacy", [False, True])
def test_the_files_that_other_tests_put_together_are_pytorchs(legacy, tmp_path):
    state = {"a.weight": np.arange(6, dtype="float32").reshape(2, 3).T, "b": np.arange(4)}
    pth.save_state(tmp_path / "net.pth", state, legacy=legacy)
    loaded = torch.load(tmp_path / "net.pth", weights_only=True)
    ours = read_state_dict(str(tmp_path / "net.pth"))
    assert list(loaded) == list(state) == list(ours)
    for name, tensor in loaded.items():
        np.testing.assert_array_equal(tensor.numpy(), ours[name])


@pytest.mark.parametrize("side", [1, 4, 5, 7, 8, 14])
def test_the_pooling_of_the_heads_is_that_of_ceil_mode(side):
    x = np.random.default_rng(0).normal(size=[2, side, side, 3])
    wanted = nn.AvgPool2d(5, 3, ceil_mode=True) if side >= 5 else nn.AdaptiveAvgPool2d(1)
    wanted = wanted(torch.tensor(x.transpose(0, 3, 1, 2))).permute(0, 2, 3, 1)
    np.testing.assert_allclose(InnerAveragePooling2D(5, 3, dtype="float64")(x), wanted, rtol=1e-12)


def test_gem_is_pytorchs_formula():
    x = np.random.default_rng(0).normal(size=[2, 4, 5, 3])
    wanted = torch.tensor(x).clamp(min=1e-6).pow(3.0).mean((1, 2)).pow(1 / 3)
    np.testing.assert_allclose(GeM(dtype="float64")(x), wanted, rtol=1e-9)

"""Vision transformers give what PyTorch's give, on weights of Hugging Face's library (extra `bench`)."""

import numpy as np
import pytest

from tfrank.models import hub

pytest.importorskip("keras_hub")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIDE, PATCH = 56, 14
COMMON = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
VIT = {"image_size": SIDE, "patch_size": PATCH, "intermediate_size": 64, **COMMON}
DINOV2 = {"image_size": SIDE, "patch_size": PATCH, "mlp_ratio": 2, **COMMON}
SWIN = {"image_size": SIDE, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2]}
OURS = {"patch_size": PATCH, "hidden_dim": 32, "num_layers": 2, "num_heads": 4}
WIDE = {"intermediate_dim": 64, **OURS}
TABLE = {"position_embedding_shape": (SIDE, SIDE, 3)}
# The class that writes the weights, its config, and the network that reads them.
CASES = {
    "vit": ("ViT", VIT, ("vit", {"mlp_dim": 64, **OURS})),
    "deit": ("DeiT", VIT, ("deit", WIDE)),
    "dinov2": ("Dinov2", DINOV2, ("dinov2", WIDE | TABLE)),
    "dinov2 with registers": (
        "Dinov2WithRegisters",
        DINOV2,
        ("dinov2", WIDE | TABLE | {"num_register_tokens": 4, "antialias_in_interpolation": True}),
    ),
    "dinov3": (
        "DINOv3ViT",
        {**VIT, "num_register_tokens": 4},
        ("dinov3", {**WIDE, "num_register_tokens": 4, "use_key_bias": False}),
    ),
    "swin": (
        "Swin",
        SWIN,
        ("swin", {"patch_size": 2, "embed_dim": 16, "depths": (1, 1), "num_heads": (2, 2), "window_size": 7}),
    ),
}


def written(kind, config, folder):
    """A network of PyTorch with random weights, which it writes to a folder."""
    torch.manual_seed(0)
    made = getattr(transformers, f"{kind}Config")(**config)
    model = getattr(transformers, f"{kind}Model")(made).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.2 if weight.ndim < 2 else 0.1)
    model.save_pretrained(folder)
    return model


def outputs(model, images, **options):
    with torch.no_grad():
        found = model(pixel_values=torch.from_numpy(images.transpose(0, 3, 1, 2).copy()), **options)
    return found.last_hidden_state.numpy()


def ours(size, monkeypatch, image_size, folder):
    monkeypatch.setitem(hub.SIZES, "small", size)
    network = hub.hub_network("small", image_size=image_size)
    hub.load_hub_weights(network, str(folder))
    return network


def assert_equal(network, images, tokens):
    found = network(images)
    patches, *class_token = found if isinstance(found, list) else [found]
    patches = patches.numpy().reshape(len(images), -1, patches.shape[-1])
    np.testing.assert_allclose(patches, tokens[:, -patches.shape[1] :], atol=1e-5)
    for token in class_token:
        np.testing.assert_allclose(token, tokens[:, 0], atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_patches_and_class_token_are_those_of_pytorch(case, tmp_path, monkeypatch):
    kind, config, size = CASES[case]
    theirs = written(kind, config, tmp_path)
    images = np.random.default_rng(0).normal(size=(2, SIDE, SIDE, 3)).astype("float32")
    assert_equal(ours(size, monkeypatch, SIDE, tmp_path), images, outputs(theirs, images))


@pytest.mark.parametrize("side", [42, 84])
@pytest.mark.parametrize("case", ["vit", "deit", "dinov2", "dinov2 with registers", "dinov3"])
def test_images_of_another_size_too(case, side, tmp_path, monkeypatch):
    kind, config, size = CASES[case]
    theirs = written(kind, config, tmp_path)
    images = np.random.default_rng(0).normal(size=(2, side, side, 3)).astype("float32")
    options = {"interpolate_pos_encoding": True} if case in ("vit", "deit") else {}
    assert_equal(ours(size, monkeypatch, side, tmp_path), images, outputs(theirs, images, **options))

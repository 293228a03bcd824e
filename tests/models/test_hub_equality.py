"""Vision transformers give what PyTorch's give, on weights of Hugging Face's library (extra `bench`)."""

import json

import numpy as np
import pytest

from tests.models import safetensor
from tfrank.common.checks import InputError
from tfrank.models import hub, hub_sizes, safetensors_files

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
TOWER = WIDE | {"intermediate_activation": "quick_gelu"}
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
    "dinov2 giant": (
        "Dinov2",
        {**DINOV2, "use_swiglu_ffn": True},
        ("dinov2", WIDE | TABLE | {"use_swiglu_ffn": True}),
    ),
    "dinov3 plus": (
        "DINOv3ViT",
        {**VIT, "num_register_tokens": 4, "use_gated_mlp": True, "hidden_act": "silu"},
        ("dinov3", {**WIDE, "num_register_tokens": 4, **hub_sizes._GATED}),
    ),
    "clip": ("CLIPVision", VIT, ("clip", TOWER)),
    "openclip": (
        "CLIPVision",
        {**VIT, "hidden_act": "gelu"},
        ("clip", TOWER | {"intermediate_activation": "gelu"}),
    ),
    "siglip": ("SiglipVision", VIT, ("siglip", TOWER | {"intermediate_activation": "gelu_approximate"})),
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
        tokens = found.last_hidden_state
        if isinstance(model, transformers.CLIPVisionModel):
            # Its own output normalises the class token alone.
            tokens = model.post_layernorm(tokens)
        pooled = isinstance(model, transformers.SiglipVisionModel)
    return tokens.numpy(), found.pooler_output.numpy() if pooled else tokens[:, 0].numpy()


def ours(size, monkeypatch, image_size, folder):
    monkeypatch.setitem(hub_sizes.SIZES, "small", size)
    network = hub.hub_network("small", image_size=image_size)
    hub.load_hub_weights(network, str(folder))
    return network


def assert_equal(network, images, theirs):
    tokens, class_token = theirs
    found = network(images)
    patches, *own_tokens = found if isinstance(found, list) else [found]
    patches = patches.numpy().reshape(len(images), -1, patches.shape[-1])
    np.testing.assert_allclose(patches, tokens[:, -patches.shape[1] :], atol=1e-5)
    for token in own_tokens:
        np.testing.assert_allclose(token, class_token, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_patches_and_class_token_are_those_of_pytorch(case, tmp_path, monkeypatch):
    kind, config, size = CASES[case]
    theirs = written(kind, config, tmp_path)
    images = np.random.default_rng(0).normal(size=(2, SIDE, SIDE, 3)).astype("float32")
    assert_equal(ours(size, monkeypatch, SIDE, tmp_path), images, outputs(theirs, images))


@pytest.mark.parametrize("side", [42, 84])
@pytest.mark.parametrize(
    "case", ["vit", "deit", "dinov2", "dinov2 with registers", "dinov3", "clip", "siglip"]
)
def test_images_of_another_size_too(case, side, tmp_path, monkeypatch):
    kind, config, size = CASES[case]
    theirs = written(kind, config, tmp_path)
    images = np.random.default_rng(0).normal(size=(2, side, side, 3)).astype("float32")
    options = {"interpolate_pos_encoding": True} if case in ("vit", "deit", "clip", "siglip") else {}
    assert_equal(ours(size, monkeypatch, side, tmp_path), images, outputs(theirs, images, **options))


def test_a_tower_of_another_network_is_refused_and_nothing_is_loaded(tmp_path, monkeypatch):
    written("CLIPVision", VIT, tmp_path / "clip")
    size = ("clip", {**TOWER, "num_heads": 2})
    with pytest.raises(InputError, match="has num_attention_heads 4, and the backbone 2"):
        ours(size, monkeypatch, SIDE, tmp_path / "clip")
    size = ("clip", {**TOWER, "intermediate_activation": "gelu"})
    with pytest.raises(InputError, match="has hidden_act 'quick_gelu', and the backbone 'gelu'"):
        ours(size, monkeypatch, SIDE, tmp_path / "clip")
    size = ("siglip", TOWER | {"intermediate_activation": "gelu_approximate"})
    with pytest.raises(InputError, match="has a model of type 'clip_vision_model', not 'siglip'"):
        ours(size, monkeypatch, SIDE, tmp_path / "clip")
    path = str(tmp_path / "clip" / "model.safetensors")
    tensors = safetensors_files.read(path)
    del tensors["encoder.layers.1.mlp.fc2.bias"]
    safetensor.save(tmp_path / "clip" / "model.safetensors", tensors)
    with pytest.raises(InputError, match=r"has no weight encoder\.layers\.1\.mlp\.fc2\.bias"):
        ours(("clip", TOWER), monkeypatch, SIDE, tmp_path / "clip")
    # The names of a model of two towers, in several files.
    network = written("CLIPVision", VIT, tmp_path / "clip")
    tensors = list(safetensors_files.read(path).items())
    for number, part in enumerate((tensors[::2], tensors[1::2])):
        safetensor.save(
            tmp_path / "clip" / f"{number}.safetensors", {f"vision_model.{k}": v for k, v in part}
        )
    names = {f"vision_model.{name}": f"{place % 2}.safetensors" for place, (name, _) in enumerate(tensors)}
    (tmp_path / "clip" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    (tmp_path / "clip" / "model.safetensors").unlink()
    images = np.random.default_rng(0).normal(size=(2, SIDE, SIDE, 3)).astype("float32")
    assert_equal(
        ours(("clip", TOWER), monkeypatch, SIDE, tmp_path / "clip"), images, outputs(network, images)
    )

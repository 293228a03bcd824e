"""Image towers of CLIP and SigLIP from Hugging Face's files, which keras-hub does not read."""

import os
import re
from typing import Any

import keras
import numpy as np

from tfrank.common import json_files
from tfrank.common.checks import InputError
from tfrank.models import safetensors_files

# What a config leaves out, by model_type.
_DEFAULTS = {
    "clip": {"patch_size": 32, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5},
    "siglip": {"patch_size": 16, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6},
}
_SHARED = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
}
# Names of fields and activations there and in keras-hub.
_FIELDS = {
    "patch_size": "patch_size",
    "hidden_size": "hidden_dim",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "intermediate_dim",
    "hidden_act": "intermediate_activation",
}
_ACTIVATIONS = {"gelu_pytorch_tanh": "gelu_approximate"}
# What is compared of a config.
_SIZES = {name: json_files.whole(1) for name in _FIELDS if name != "hidden_act"} | {
    "hidden_act": json_files.text()
}
_TOWER = json_files.record({}, _SIZES, others=True)
_CONFIG = json_files.record(
    {"model_type": json_files.text()}, {**_SIZES, "vision_config": _TOWER}, others=True
)
# Parts of the paths of keras-hub's weights, and the parts of the names there.
_RENAMED = (
    (r"^.*?\b(?=encoder_block_|pre_layer_norm/|post_layer_norm/|layer_norm/|head/)", ""),
    (r"^.*?\b(?=(class|patch|position)_embedding)", "embeddings."),
    (r"^encoder_block_(\d+)/", r"encoder.layers.\1."),
    (r"^pre_layer_norm/", "pre_layrnorm."),
    (r"^(post_)?layer_norm/", "post_layernorm."),
    (r"^head/variable(_\d+)?$", "head.probe"),
    (r"\.attention/", ".self_attn/"),
    (r"layer_norm_(\d)", r"layer_norm\1"),
    (r"\.dense_(\d)", r".mlp.fc\1"),
    (r"attention_output", "out_proj"),
    (r"(query|key|value)", lambda found: f"{found[0][0]}_proj"),
    (r"[/.](kernel|gamma|embeddings)$", ".weight"),
    (r"[/.](beta|bias)$", ".bias"),
    ("/", "."),
)


def read_tower(network: keras.Model, family: str, wanted: dict[str, Any], folder: str) -> list[np.ndarray]:
    """Reads the weights of an image tower; those of a text tower beside it are not read.

    Args:
        network: the network, whose weights have the paths of keras-hub's towers.
        family: "clip" or "siglip".
        wanted: the arguments that keras-hub built it with.
        folder: folder of config.json and the .safetensors files.

    Returns:
        The arrays of all weights of the network, in its order. Tables of positions may be of another size.

    Raises:
        InputError: the folder has a network of another family or size, or a weight is missing.
    """
    _check_config(family, wanted, folder)
    tensors: dict[str, np.ndarray] = {}
    for file in safetensors_files.names_of_files(folder):
        found = safetensors_files.read(os.path.join(folder, file), _of_image_tower)
        tensors |= {name.removeprefix("vision_model."): tensor for name, tensor in found.items()}
    return [_array(weight, tensors, folder) for weight in network.weights]


def _of_image_tower(name: str) -> bool:
    return name.startswith(("vision_model.", "embeddings.", "encoder.", "pre_", "post_", "head."))


def _check_config(family, wanted, folder):
    config = json_files.read(os.path.join(folder, "config.json"), _CONFIG, safetensors_files.AGAIN)
    kind = str(config["model_type"]).split("_")[0]
    if kind != family:
        raise InputError(f"{folder} has a model of type {config['model_type']!r}, not {family!r}.")
    found = _SHARED | _DEFAULTS[family] | config.get("vision_config", config)
    for theirs, ours in _FIELDS.items():
        there = _ACTIVATIONS.get(found[theirs], found[theirs]) if theirs == "hidden_act" else found[theirs]
        if there != wanted[ours]:
            hint = " Take hub/openclip_..." if theirs == "hidden_act" and there == "gelu" else ""
            raise InputError(
                f"{folder} has {theirs} {found[theirs]!r}, and the backbone {wanted[ours]!r}: it is a network"
                f" of another size.{hint}"
            )


def _array(weight, tensors, folder):
    """The array of a weight of keras-hub, in its layout; a PyTorch layer's kernel is transposed."""
    name, shape = weight.path, tuple(weight.shape)
    if name.endswith("position_ids"):
        return weight.numpy()  # The numbers of the positions themselves.
    for pattern, replacement in _RENAMED:
        name = re.sub(pattern, replacement, name)
    part = None
    if found := re.fullmatch(r"head\.attention\.([qkv])_proj\.(weight|bias)", name):
        part, name = "qkv".index(found[1]), f"head.attention.in_proj_{found[2]}"
    if name not in tensors:
        raise InputError(f"{folder} has no weight {name}. Download the whole model again.")
    tensor = tensors[name] if part is None else np.split(tensors[name], 3)[part]
    if weight.path.endswith("kernel"):
        tensor = tensor.transpose(2, 3, 1, 0) if tensor.ndim == 4 else tensor.T
    return tensor.reshape(shape) if tensor.size == np.prod(shape) else tensor

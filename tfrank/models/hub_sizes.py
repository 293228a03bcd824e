"""The vision transformers of `hub`: their families, and their published sizes."""

from typing import Any, NamedTuple

PREFIX = "hub/"


class Family(NamedTuple):
    """A kind of vision transformer.

    Attributes:
        backbone: the class in `keras_hub.models`.
        preprocessing: the mode of `preprocess` that its published weights expect.
        prefix_tokens: number of tokens before those of the patches, without registers. The first one is the
            class token.
        pools: whether the network pools the patches by attention; the result serves as its class token.
        names: how the names of its weights begin in Hugging Face's files of a classifier. Files of the
            network alone leave it out.
    """

    backbone: str
    preprocessing: str
    prefix_tokens: int
    names: str = ""
    pools: bool = False

    @property
    def has_class_token(self) -> bool:
        """Whether the network gives a vector beside the map of the patches."""
        return self.pools or self.prefix_tokens > 0


FAMILIES = {
    # The mean and deviation are 0.5 for the weights of the paper; arXiv 2010.11929.
    "vit": Family("ViTBackbone", "signed_rgb", 1, "vit."),
    "deit": Family("DeiTBackbone", "imagenet_rgb", 2, "deit."),  # arXiv 2012.12877
    "swin": Family("SwinTransformerBackbone", "imagenet_rgb", 0, "swin."),  # arXiv 2103.14030
    "dinov2": Family("DINOV2Backbone", "imagenet_rgb", 1),  # arXiv 2304.07193
    "dinov3": Family("DINOV3Backbone", "imagenet_rgb", 1),  # arXiv 2508.10104
    "clip": Family("CLIPBackbone", "clip_rgb", 1),  # arXiv 2103.00020
    "siglip": Family("SigLIPBackbone", "signed_rgb", 0, pools=True),  # arXiv 2303.15343
}


def _vit(patch, dim, layers, heads, mlp="mlp_dim"):
    return dict(patch_size=patch, hidden_dim=dim, num_layers=layers, num_heads=heads, **{mlp: 4 * dim})


def _swin(dim, depths, heads):
    return dict(embed_dim=dim, depths=depths, num_heads=heads, window_size=7, drop_path=0.0)


def _dino(patch, dim, layers, heads, registers=0):
    return _vit(patch, dim, layers, heads, "intermediate_dim") | {"num_register_tokens": registers}


def _dinov2(dim, layers, heads, registers=0):
    # The authors smooth the positions only for the networks with registers.
    return _dino(14, dim, layers, heads, registers) | {"antialias_in_interpolation": registers > 0}


def _tower(patch, dim, layers, heads, activation, mlp=None):
    arguments = _vit(patch, dim, layers, heads, "intermediate_dim") | {"intermediate_activation": activation}
    return arguments | ({"intermediate_dim": mlp} if mlp else {})


# DINOv3's sizes with a plus in their names.
_GATED = {"use_key_bias": False, "use_gated_mlp": True, "hidden_activation": "silu"}
# Published sizes: the family, and the arguments of its class.
SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    "vit_tiny": ("vit", _vit(16, 192, 12, 3)),
    "vit_small": ("vit", _vit(16, 384, 12, 6)),
    "vit_base": ("vit", _vit(16, 768, 12, 12)),
    "vit_base_32": ("vit", _vit(32, 768, 12, 12)),
    "vit_large": ("vit", _vit(16, 1024, 24, 16)),
    "deit_tiny": ("deit", _vit(16, 192, 12, 3, "intermediate_dim")),
    "deit_small": ("deit", _vit(16, 384, 12, 6, "intermediate_dim")),
    "deit_base": ("deit", _vit(16, 768, 12, 12, "intermediate_dim")),
    "swin_tiny": ("swin", _swin(96, (2, 2, 6, 2), (3, 6, 12, 24))),
    "swin_small": ("swin", _swin(96, (2, 2, 18, 2), (3, 6, 12, 24))),
    "swin_base": ("swin", _swin(128, (2, 2, 18, 2), (4, 8, 16, 32))),
    "dinov2_small": ("dinov2", _dinov2(384, 12, 6)),
    "dinov2_base": ("dinov2", _dinov2(768, 12, 12)),
    "dinov2_large": ("dinov2", _dinov2(1024, 24, 16)),
    "dinov2_giant": ("dinov2", _dinov2(1536, 40, 24) | {"use_swiglu_ffn": True}),
    "dinov2_small_registers": ("dinov2", _dinov2(384, 12, 6, 4)),
    "dinov2_base_registers": ("dinov2", _dinov2(768, 12, 12, 4)),
    "dinov2_large_registers": ("dinov2", _dinov2(1024, 24, 16, 4)),
    "dinov2_giant_registers": ("dinov2", _dinov2(1536, 40, 24, 4) | {"use_swiglu_ffn": True}),
    "dinov3_small": ("dinov3", _dino(16, 384, 12, 6, 4) | {"use_key_bias": False}),
    "dinov3_base": ("dinov3", _dino(16, 768, 12, 12, 4) | {"use_key_bias": False}),
    "dinov3_large": ("dinov3", _dino(16, 1024, 24, 16, 4) | {"use_key_bias": False}),
    "dinov3_small_plus": ("dinov3", _dino(16, 384, 12, 6, 4) | _GATED),
    "dinov3_huge_plus": ("dinov3", _dino(16, 1280, 32, 20, 4) | _GATED),
    # OpenAI's CLIP, and that of OpenCLIP and LAION, whose activation is another.
    "clip_base": ("clip", _tower(16, 768, 12, 12, "quick_gelu")),
    "clip_base_32": ("clip", _tower(32, 768, 12, 12, "quick_gelu")),
    "clip_large": ("clip", _tower(14, 1024, 24, 16, "quick_gelu")),
    "openclip_base": ("clip", _tower(16, 768, 12, 12, "gelu")),
    "openclip_base_32": ("clip", _tower(32, 768, 12, 12, "gelu")),
    "openclip_large": ("clip", _tower(14, 1024, 24, 16, "gelu")),
    "openclip_huge": ("clip", _tower(14, 1280, 32, 16, "gelu")),
    "siglip_base": ("siglip", _tower(16, 768, 12, 12, "gelu_approximate")),
    "siglip_base_32": ("siglip", _tower(32, 768, 12, 12, "gelu_approximate")),
    "siglip_large": ("siglip", _tower(16, 1024, 24, 16, "gelu_approximate")),
    "siglip_so400m": ("siglip", _tower(14, 1152, 27, 16, "gelu_approximate", 4304)),
    "siglip_so400m_16": ("siglip", _tower(16, 1152, 27, 16, "gelu_approximate", 4304)),
}
# Families of two towers, of which the one of images is taken.
TOWERS = ("clip", "siglip")
HUB = tuple(PREFIX + size for size in SIZES)


def family_of(size: str) -> Family:
    """Returns the family of a size, such as "dinov2_small"."""
    return FAMILIES[SIZES[size][0]]

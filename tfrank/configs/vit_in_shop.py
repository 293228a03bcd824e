"""In-shop Clothes with vision transformers: settings of Recall@k's code, and with `:sup_con` of Hyp-ViT's.

    python train_main.py --config=configs/vit_in_shop.py --config.data.source=in_shop \\
        --config.model.weights=vit-base-patch16-224-in21k

Needs the extra `hub`, the folder of a Hugging Face model, see `tfrank.configs.papers.get_vit_config`, and a
GPU; --config.train.recompute=True halves the memory of the network. To see what a run would take, without
weights: --config.dry_run --config.model.weights=random.

Published Recall@1 in % (arXiv 2108.11179, 2203.10833):

    Hyp-ViT, ViT-S/16        92.5
    Hyp-DINO, ViT-S/16       92.4
"""

from tfrank.configs import papers


def get_config(loss: str = ""):
    config = papers.get_vit_config("in_shop", loss)
    config.evaluation.recall_at = (1, 10, 20, 30, 40, 50)
    papers.publish(
        config,
        {
            "Hyp-ViT, ViT-S/16": (92.5,),
            "Hyp-DINO, ViT-S/16": (92.4,),
        },
    )
    return config

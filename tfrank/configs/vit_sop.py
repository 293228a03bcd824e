"""SOP with vision transformers: settings of Recall@k's code, and with `:sup_con` of Hyp-ViT's.

    python train_main.py --config=configs/vit_sop.py --config.data.source=Stanford_Online_Products \\
        --config.model.weights=vit-base-patch16-224-in21k

Needs the extra `hub`, the folder of a Hugging Face model, see `tfrank.configs.papers.get_vit_config`, and a
GPU; --config.train.recompute=True halves the memory of the network. To see what a run would take, without
weights: --config.dry_run --config.model.weights=random.

Published Recall@1 in % (arXiv 2108.11179, 2203.10833, 2304.13393):

    Recall@k, ViT-B/16       88.0
    Recall@k, ViT-B/32       85.1
    Hyp-ViT, ViT-S/16        85.9
    Hyp-DINO, ViT-S/16       85.1
    ViT-Triplet, ViT-S/16    86.5
"""

from tfrank.configs import papers


def get_config(loss: str = ""):
    config = papers.get_vit_config("sop", loss)
    config.evaluation.recall_at = (1, 10, 100, 1000)
    papers.publish(
        config,
        {
            "Recall@k, ViT-B/16": (88.0,),
            "Recall@k, ViT-B/32": (85.1,),
            "Hyp-ViT, ViT-S/16": (85.9,),
            "Hyp-DINO, ViT-S/16": (85.1,),
            "ViT-Triplet, ViT-S/16": (86.5,),
        },
    )
    return config

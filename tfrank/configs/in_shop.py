"""In-shop Clothes: 25,882 training images of 3,997 items; 14,218 queries and 12,612 gallery images of 3,985.

    python train_main.py --config=configs/in_shop.py:rll --config.data.source=In-shop_Clothes

Needs the folder with Eval/list_eval_partition.txt and the images, bn_inception-52deb4733.pth (for other
losses than `:rll` resnet50-0676ba61.pth), see `tfrank.configs.papers`, and a GPU.

The test queries are ranked against the test gallery, as defined by the records and as in the table.

Published Recall@K in %:

    paper, table       loss                              dim     1    10    20    30    40    50
    RLL, 2             RLL-Simpler-H                     128  88.5  97.1  98.0  98.4  98.6  98.7
                       HTL                               128  80.9  94.3  95.8  97.2  97.4  97.8
                       Multi-similarity                  128  88.0  97.2  98.1  98.5  98.7  98.8
    RLL, 6             RLL-Simpler-L                     128  85.2  96.3  97.5  98.0  98.3  98.5
                       RLL-Simpler-M                     128  88.7  97.2  98.1  98.4  98.7  98.9
                       RLL-Simpler-(L,M,H)           128 x 3  89.9  97.6  98.3  98.7  98.9  99.0
    RLL, 14            T_n = 12 throughout                    87.7  96.9  97.8  98.3  98.5  98.7
                       T_n from 4 to 12                       86.2  96.7  97.8  98.3  98.5  98.7

The last row: --config.loss.negative_temperature=4 --config.loss.final_negative_temperature=12
--config.loss.decay_steps=30000.

Differences between paper and code, apart from those in `tfrank.configs.papers`: batches are of 22 x 3 = 66 in
section 4.1.6 and in the published network, but of 60 in Table 14. m and T_n are the published solver's, 0.4
and 12 (its folder says T10); the text has T_n in Table 14 only. PNP, Smooth-AP and mAP_Q publish nothing on
this data: losses other than `:rll` use the settings of SOP.
"""

from tfrank.configs import papers


def get_config(loss: str = ""):
    config = papers.get_config(loss)
    config.name = "in_shop"
    config.data.name = "in_shop"
    if loss == "rll":
        config.model.embedding_dim = 128
        config.loss.negative_temperature = 12.0
    config.evaluation.recall_at = (1, 10, 20, 30, 40, 50)
    papers.publish(
        config,
        {
            "RLL-Simpler-H": (88.5, 97.1, 98.0, 98.4, 98.6, 98.7),
            "HTL": (80.9, 94.3, 95.8, 97.2, 97.4, 97.8),
            "Multi-similarity": (88.0, 97.2, 98.1, 98.5, 98.7, 98.8),
            "RLL-Simpler-L": (85.2, 96.3, 97.5, 98.0, 98.3, 98.5),
            "RLL-Simpler-M": (88.7, 97.2, 98.1, 98.4, 98.7, 98.9),
            "RLL-Simpler-(L,M,H), 3 x 128 numbers": (89.9, 97.6, 98.3, 98.7, 98.9, 99.0),
            "RLL, T_n = 12 throughout": (87.7, 96.9, 97.8, 98.3, 98.5, 98.7),
            "RLL, T_n from 4 to 12": (86.2, 96.7, 97.8, 98.3, 98.5, 98.7),
        },
    )
    return config

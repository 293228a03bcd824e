"""Stanford Online Products: 59,551 training images of 11,318 products, 60,502 test images of 11,316.

    python train_main.py --config=configs/sop.py --config.data.source=Stanford_Online_Products

Needs the unpacked folder (Ebay_train.txt, Ebay_test.txt and the 12 folders), resnet50-0676ba61.pth (for
`:rll` bn_inception-52deb4733.pth), see `tfrank.configs.papers`, and a GPU.

Published Recall@K in %, dists@intra, dists@inter and NMI (--config.evaluation.nmi=True measures it by
k-means, which takes some minutes):

    paper, table          loss                         dim     1    10   100  1000  intra  inter   NMI
    PNP, 1                PNP-O, batch 112             512  77.9  90.5  96.3  98.9  0.318  0.793  90.0
                          PNP-Iu                            76.3  89.6  96.0  98.9  0.301  0.771  89.6
                          PNP-Ib                            77.9  90.4  96.3  98.9  0.302  0.756  90.0
                          PNP-Ds                            79.6  91.4  96.6  99.0  0.363  0.849  90.3
                          PNP-Dq                            80.1  91.5  96.7  99.0  0.380  0.946  90.4
    PNP, 3                PNP-Dq, batch 384            512  81.1  92.2  96.8  99.0
    Smooth-AP, 2          Smooth-AP, batch 224         512  79.2  91.0  96.5  98.9
                          Smooth-AP, batch 384              80.1  91.5  96.6  99.0
                          FastAP                            76.4  89.0  95.1  98.2
                          Blackbox AP                       78.6  90.5  96.0  98.7
    RLL, 1 and 5          RLL-Simpler-H                 64  74.8  88.4  95.1
                          RLL-Simpler-(L,M,H)     64 x 3    78.6  90.4  95.9
    RLL, 12               RLL-(L,M,H)             512 x 3   79.8  91.3  96.3
    PNP, 6, three         Smooth-AP                    512  73.2  86.4  93.6  97.5
    classes as one        PNP-Iu (the text: Ib)             67.5  82.7  92.3  97.5
                          PNP-Dq                            73.8  87.1  94.2  98.0

The last three rows need --config.data.merge_classes=3, Smooth-AP also --config.data.sampler=class_balanced,
since merged classes span categories. Batch 384 needs --config.data.classes_per_batch=96, batch 224 needs 56.

RLL's Tables 7 to 13 use plain random crops (--config.data.crop=warp).

Differences between paper and code, apart from those in `tfrank.configs.papers`: PNP's code trains for 400
epochs and multiplies the rate by 0.3 after 120, 220, 250 and 280; with batches of 112 that is
--config.train.schedule=steps --config.train.schedule_factor=0.3
--config.train.schedule_steps=63805,116975,132926,148878. On this data Smooth-AP mines hard negatives as
FastAP and Blackbox AP do (section 5.3): batches of two categories. PNP draws classes at random. Table 3 of
PNP copies Smooth-AP's 80.1 of batch 384 beside its own of batch 112.
"""

from tfrank.configs import papers


def get_config(loss: str = ""):
    config = papers.get_config(loss)
    config.name = "sop"
    config.data.name = "sop"
    if loss == "rll":
        config.data.classes_per_batch = 60
    if loss in ("smooth_ap", "fast_ap", "blackbox_ap"):
        config.data.sampler = "category_pairs"
    config.evaluation.recall_at = (1, 10, 100, 1000)
    recalls = [f"recall_at_{k}" for k in config.evaluation.recall_at]
    papers.publish(
        config,
        {
            "PNP-O, batch 112": (77.9, 90.5, 96.3, 98.9, 0.318, 0.793, 90.0),
            "PNP-Iu, batch 112": (76.3, 89.6, 96.0, 98.9, 0.301, 0.771, 89.6),
            "PNP-Ib, batch 112": (77.9, 90.4, 96.3, 98.9, 0.302, 0.756, 90.0),
            "PNP-Ds, batch 112": (79.6, 91.4, 96.6, 99.0, 0.363, 0.849, 90.3),
            "PNP-Dq, batch 112": (80.1, 91.5, 96.7, 99.0, 0.380, 0.946, 90.4),
            "PNP-Dq, batch 384": (81.1, 92.2, 96.8, 99.0),
            "Smooth-AP, batch 224": (79.2, 91.0, 96.5, 98.9),
            "Smooth-AP, batch 384": (80.1, 91.5, 96.6, 99.0),
            "FastAP": (76.4, 89.0, 95.1, 98.2),
            "Blackbox AP": (78.6, 90.5, 96.0, 98.7),
            "RLL-Simpler-H, 64 numbers": (74.8, 88.4, 95.1),
            "RLL-Simpler-(L,M,H), 3 x 64 numbers": (78.6, 90.4, 95.9),
            "RLL-(L,M,H), 3 x 512 numbers": (79.8, 91.3, 96.3),
            "Smooth-AP, three classes as one": (73.2, 86.4, 93.6, 97.5),
            "PNP-Iu, three classes as one": (67.5, 82.7, 92.3, 97.5),
            "PNP-Dq, three classes as one": (73.8, 87.1, 94.2, 98.0),
        },
        [*recalls, "dists_intra", "dists_inter", "nmi"],
    )
    return config

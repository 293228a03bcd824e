"""PKU VehicleID: trains on the images of the training list, tests on three growing sets of other vehicles.

    tfrank prepare --source=vehicle_id --source_dir=VehicleID_V1.0 \
        --output_dir=records/vehicle_id
    python train_main.py --config=configs/vehicle_id.py --config.data.records=records/vehicle_id

Needs the unpacked folder (image/, train_test_split/), resnet50-0676ba61.pth, see `tfrank.configs.papers`, and
a GPU.

These commands test on the small set. To test the same run on the medium set (or on the large one,
test_2400); the results go to runs/vehicle_id_pnp/evaluation/test_1600:

    python eval_main.py --workdir=runs/vehicle_id_pnp --config.data.test=test_1600

Each set is measured by two protocols. In "leave_one_out" every image is a query and all others its gallery,
as in the papers below. "random_gallery" is the data set's own protocol: one gallery image per vehicle, drawn
ten times (Liu et al., CVPR 2016). Results of the two are not comparable.

Published Recall@K in %, leave_one_out, ResNet-50, 512 dimensions; the report shows the rows with a *:

                                             small        medium         large
    paper, table      loss                1      5      1      5      1      5
    PNP, 2            PNP-O, batch 112  93.6   97.1   91.6   95.9   89.2   95.4
                      PNP-Iu            92.4   96.9   90.4   95.4   87.6   94.8
                      PNP-Ib, b = 1     94.0   97.3   92.0   96.0   89.9   95.4
                      PNP-Ds            94.3   97.3   92.7   96.4   91.0   95.9
                    * PNP-Dq            94.6   97.4   92.9   96.3   91.4   95.9
    PNP, 4          * PNP-Dq, 384       95.5   97.8   94.2   96.9   93.2   96.6
    Smooth-AP, 3    * Smooth-AP, 384    94.9   97.6   93.3   96.4   91.9   96.2
                      FastAP            91.9   96.8   90.6   95.9   87.5   95.1
    PNP, 7, three     Smooth-AP         89.9   95.8   88.6   94.3   85.2   93.2
    classes as one    PNP-Iu            86.9   94.0   85.0   92.6   80.8   90.7
                      PNP-Dq            92.6   96.3   90.8   95.3   88.6   94.6

The last three rows need --config.data.merge_classes=3. PNP-Ib's b is best at 1 here and at 4 on SOP (Fig. 8):
--config.loss.variant=ib --config.loss.b=1. Batch 384 needs --config.data.classes_per_batch=96. Table 2 has
one dists@intra, dists@inter and NMI for each loss but does not name the set: they are left out.

Differences between papers and files, apart from those in `tfrank.configs.papers`: the papers print 13,134
training classes of 110,178 images, and test sets of 7,332, 12,995 and 20,038; the lists have 13,164 of
113,346, and 6,493, 13,377 and 19,777. Smooth-AP's code multiplies the rate by 0.3 after 120, 200, 220, 250,
280 and twice after 300 of 400 epochs. RLL publishes nothing on this data: `:rll` uses the settings of
`papers.rll_settings`, batches of 22 x 3.
"""

from tfrank.configs import papers


def get_config(loss: str = ""):
    config = papers.get_config(loss)
    config.name = "vehicle_id"
    config.data.name = "vehicle_id"
    config.data.test = ("test_800",)
    config.evaluation.recall_at = (1, 5)
    config.evaluation.protocols = ("leave_one_out", "random_gallery")
    # The test set is chosen later, so the names include it.
    papers.publish(
        config,
        {
            "test_800: PNP-Dq, batch 112": (94.6, 97.4),
            "test_800: PNP-Dq, batch 384": (95.5, 97.8),
            "test_800: Smooth-AP, batch 384": (94.9, 97.6),
            "test_1600: PNP-Dq, batch 112": (92.9, 96.3),
            "test_1600: PNP-Dq, batch 384": (94.2, 96.9),
            "test_1600: Smooth-AP, batch 384": (93.3, 96.4),
            "test_2400: PNP-Dq, batch 112": (91.4, 95.9),
            "test_2400: PNP-Dq, batch 384": (93.2, 96.6),
            "test_2400: Smooth-AP, batch 384": (91.9, 96.2),
        },
    )
    return config

"""VGGFace2: 3.31 million faces of 8,631 people to train on, 169,396 of 500 others to test on.

    python -m tfrank.data.prepare --source=vgg_face2 --source_dir=VGG-Face2 --output_dir=records/vgg_face2
    python train_main.py --config=configs/vgg_face2.py:smooth_ap --config.data.records=records/vgg_face2

Needs the folder with its lists and bb_landmark/, se_resnet50-ce0d4300.pth, see `configs/papers.py`, and a
GPU. Faces are cut out by their box, extended by 0.3, and resized to 224 x 224. Any loss, `:rll` too, takes
these settings: RLL publishes nothing on faces.

The same run on IJB-C, into runs/vgg_face2_smooth_ap/evaluation/ijb_c_test. The embeddings of a video's frames
are averaged to one instance, as in the paper:

    python -m tfrank.data.prepare --source=ijb_c --source_dir=IJB-C --output_dir=records/ijb_c
    python eval_main.py --workdir=runs/vgg_face2_smooth_ap --config.data.test_records=records/ijb_c

Beside retrieval, every image a query, faces are verified: ROC-AUC, and TAR at FAR of ten million pairs of
instances, not of IJB-C's own list of pairs of templates, so published TARs do not compare.

That list comes with InsightFace's layout of IJB-C (loose_crop/ and meta/), which has no boxes and no classes.
Its 15.7 million pairs of templates are verified, TAR at FAR 1e-1 to 1e-6, on faces aligned by five points:

    python -m tfrank.data.prepare --source=ijb_c --source_dir=IJBC --output_dir=records/ijbc
    python eval_main.py --workdir=runs/vgg_face2_smooth_ap --config.data.test_records=records/ijbc \
        --config.data.test_region=face

Published by Smooth-AP, mAP; the report has the rows with a *:

                                        VGGFace2 network          ArcFace network
    table  loss                         VGGFace2  IJB-C           VGGFace2  IJB-C
    4    * before (softmax, ArcFace)       0.828  0.726              0.858  0.772
           + contrastive                   0.828  0.728              0.861  0.775
           + triplet                       0.845  0.740              0.880  0.787
         * + Smooth-AP                     0.850  0.754              0.902  0.803
    5      + Smooth-AP, batch 64           0.824  0.726
                              128          0.844  0.736
                              256          0.853  0.754

The paper fine-tunes networks that know faces already: SENet-50 trained on VGGFace2, and ArcFace's
ResNet-50. Neither is published in a file that tfrank reads, so this starts from ImageNet: expect less,
above all at this rate and length. Any file of an SE-ResNet-50 in the same layout will do:
--config.model.weights=PATH. ArcFace's input, 112 x 112 aligned by five points, 512 numbers:
--config.data.region=face --config.data.image_size=112 --config.model.backbone=resnet50
--config.model.weights=PATH --config.model.embedding_dim=512.

Not said in the paper: the length (4 epochs here, 59,000 steps) and whether faces are mirrored (here they
are). Weight decay: see `papers.pnp_settings`.
"""

from tfrank.configs import default, papers


def get_config(loss: str = ""):
    config = default.get_config(loss)
    papers.pnp_settings(config)
    config.name = "vgg_face2"
    config.data.name = "vgg_face2"
    config.data.region = "box"
    config.data.box_min_aspect = 0.875
    config.data.box_margin = 0.3
    config.data.resize = 0
    config.data.classes_per_batch = 56
    config.model.backbone = "se_resnet50"
    config.model.weights = "se_resnet50-ce0d4300.pth"
    config.model.embedding_dim = 256
    config.train.epochs = 4.0
    config.evaluation.verification = True
    # The test set is chosen after this, so names say which one a number is of.
    papers.publish(
        config,
        {
            "VGGFace2: VGGFace2 network": (82.8,),
            "VGGFace2: VGGFace2 network, Smooth-AP": (85.0,),
            "VGGFace2: ArcFace network": (85.8,),
            "VGGFace2: ArcFace network, Smooth-AP": (90.2,),
            "IJB-C: VGGFace2 network": (72.6,),
            "IJB-C: VGGFace2 network, Smooth-AP": (75.4,),
            "IJB-C: ArcFace network": (77.2,),
            "IJB-C: ArcFace network, Smooth-AP": (80.3,),
        },
        ["map"],
    )
    return config

"""VGGFace2: 3.31 million training faces of 8,631 people, 169,396 test faces of 500 others.

    tfrank prepare --source=vgg_face2 --source_dir=VGG-Face2 --output_dir=records/vgg_face2
    python train_main.py --config=configs/vgg_face2.py:smooth_ap --config.data.records=records/vgg_face2

Needs the folder with its lists and bb_landmark/, se_resnet50-ce0d4300.pth, see `tfrank.configs.papers`, and a
GPU. Faces are cropped to their box, extended by 0.3, and resized to 224 x 224. All losses, `:rll` too, use
these settings: RLL publishes nothing on faces.

To test the same run on IJB-C; the results go to runs/vgg_face2_smooth_ap/evaluation/ijb_c_test. The
embeddings of a video's frames are averaged to one instance, as in the paper:

    tfrank prepare --source=ijb_c --source_dir=IJB-C --output_dir=records/ijb_c
    python eval_main.py --workdir=runs/vgg_face2_smooth_ap --config.data.test_records=records/ijb_c

This measures retrieval, with every image as a query, and verification: ROC-AUC, and TAR at FAR of ten million
pairs of instances. These are not IJB-C's own pairs of templates, so published TARs are not comparable.

The list of template pairs comes with InsightFace's layout of IJB-C (loose_crop/ and meta/), which has no
boxes and no classes. To verify its 15.7 million pairs, TAR at FAR 1e-1 to 1e-6, on faces aligned by five
points:

    tfrank prepare --source=ijb_c --source_dir=IJBC --output_dir=records/ijbc
    python eval_main.py --workdir=runs/vgg_face2_smooth_ap --config.data.test_records=records/ijbc \
        --config.data.test_region=face

Published mAP of Smooth-AP; the report shows the rows with a *:

                                        VGGFace2 network          ArcFace network
    table  loss                         VGGFace2  IJB-C           VGGFace2  IJB-C
    4    * before (softmax, ArcFace)       0.828  0.726              0.858  0.772
           + contrastive                   0.828  0.728              0.861  0.775
           + triplet                       0.845  0.740              0.880  0.787
         * + Smooth-AP                     0.850  0.754              0.902  0.803
    5      + Smooth-AP, batch 64           0.824  0.726
                              128          0.844  0.736
                              256          0.853  0.754

The paper fine-tunes networks trained on faces: SENet-50 trained on VGGFace2, and ArcFace's ResNet-50.
Neither is published in a file that tfrank reads, so this config starts from ImageNet weights: expect lower
results, above all at this rate and length. --config.model.weights=PATH takes any file of an SE-ResNet-50 in
the same layout. For ArcFace's input, 112 x 112 aligned by five points, and 512 dimensions:
--config.data.region=face --config.data.image_size=112 --config.model.backbone=resnet50
--config.model.weights=PATH --config.model.embedding_dim=512.

The paper names neither the length (4 epochs here, 59,000 steps) nor whether faces are mirrored (here they
are). For weight decay see `papers.pnp_settings`.
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
    # The test set is chosen later, so the names include it.
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

"""Your own embeddings: trains a head on vectors that another model has computed, in a minute.

    python train_main.py --config=configs/own_embeddings.py --config.data.source=features.npz

`features.npz` has `embeddings`, `[rows, dim]` floats of any norm, and `labels`, `[rows]` words or integers.
They may be of images, texts, sounds or anything else. A parquet file, or a folder of them such as an index
that `tfrank index` has written, works too; see `tfrank.data.sources.embeddings`. Half of the classes, drawn
at random, become the test set, unless the file has a `split`.

The head starts as a PCA of the vectors, so that nothing is lost at the start. A fifth of the training classes
is held out to choose the best weights, which may be the initial ones. The report compares the vectors
themselves, the start and the trained head.

- To train an MLP before the head: --config.model.hidden=512.
- To change the length of the embedding: --config.model.embedding_dim=64. With --config.model.head=none and an
  MLP it is that of the vectors.
- The SavedModel maps vectors to embeddings. To join it with the SavedModel that computed the vectors:
  tfrank export --model=RUN --after=SAVED_MODEL
"""

from tfrank.configs import default


def get_config(loss: str = ""):
    config = default.get_config(loss)
    config.name = "own_embeddings"
    config.data.name = "embeddings"
    config.data.validation_classes = -1
    config.data.classes_per_batch = -1
    config.model.backbone = "vectors"
    config.model.head = "pca"
    config.model.embedding_dim = 256
    config.train.learning_rate = -1.0
    config.train.start_share = 0.5
    config.train.patience = 4
    config.train.steps = -1
    config.train.evaluate_every = -1
    config.train.checkpoint_every = 100
    config.train.log_every = 10
    config.evaluation.baselines = True
    return config

"""Embeddings by two logical CPUs beside those by one, in a process of its own; the largest difference.

python -m tests.evaluation.embed_replicas
"""

import json

import numpy as np
import tensorflow as tf

from tests.programs import make_two_cpus

BATCH_SIZES = (1, 2, 3, 7)


def main():
    make_two_cpus()
    from tfrank.evaluation.embed import on_all_replicas

    images = np.random.default_rng(0).normal(size=[7, 4, 4, 3]).astype("float32")
    shares = []
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        kernel = tf.Variable(np.random.default_rng(1).normal(size=[48, 5]).astype("float32"))

    @tf.function(reduce_retracing=True)
    def embed_fn(batch):
        tf.py_function(lambda size: shares.append(int(size)), [tf.shape(batch)[0]], [])
        # 1 / 0 for an image of zeros, such as padding is.
        flat = tf.reshape(batch, [-1, 48])
        return flat @ kernel / tf.reduce_sum(tf.square(flat), axis=1, keepdims=True)

    function, found = on_all_replicas(embed_fn, strategy), {}
    for size in BATCH_SIZES:
        batches = [images[start : start + size] for start in range(0, 7, size)]
        shares.clear()
        got = np.concatenate([function(tf.constant(batch)) for batch in batches])
        found[size] = {"shares": sorted(shares), "shape": list(got.shape)}
        found[size]["difference"] = float(np.abs(got - embed_fn(images)).max())
    one_device = tf.distribute.get_strategy()
    found["same"] = on_all_replicas(embed_fn, one_device) is embed_fn
    print(json.dumps(found))


if __name__ == "__main__":
    main()

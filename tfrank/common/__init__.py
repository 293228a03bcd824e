"""Helpers that every other folder may import; this folder imports none of them."""

from tfrank.common import keras_backend, starting

# Before the imports that take seconds.
starting.end_on_interrupt()
starting.keep_freed_memory()
# Before anything calls Keras.
with starting.smaller_keras():
    keras_backend.check()

"""Measures a trained model, a SavedModel, or embeddings, and writes a report.

    python eval_main.py --workdir=runs/letters_pnp [--config.field=value ...]
    python eval_main.py --model=runs/letters_pnp/saved_model
    python eval_main.py --embeddings=embeddings.npz

A pass that was stopped goes on where it was. Without --config the config is that of the run.
"""

from tfrank.run.entry_points import evaluate

if __name__ == "__main__":
    evaluate()

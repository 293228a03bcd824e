"""Trains an embedding model, measures it and exports it.

    python train_main.py [--config=configs/letters.py[:loss]] [--workdir=FOLDER] [--config.field=value ...]

Killed and started again with the same command, it goes on from its last checkpoint.
"""

from tfrank.run.entry_points import train

if __name__ == "__main__":
    train()

"""Evaluation of few large classes takes the memory of blocks, not of all positives of all queries."""

import json

import pytest

from tests.command_lines import run

IMAGES, CLASSES = 10_000, 2
POSITIVES = IMAGES * (IMAGES // CLASSES - 1)
# Two blocks of similarities, the slices of four threads, and what TensorFlow takes; see `retrieval_ranks`.
MOST = 600e6
PROGRAM = f"""
import json, os
import numpy as np
from tfrank.configs import digits
from tfrank.evaluation import evaluate
from tfrank.evaluation.protocols import TestSet
from tfrank.run.evaluation_results import evaluate_embeddings

def held(field):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024

def case(images):
    rows = np.random.default_rng(0).normal(size=(images, 8)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), np.arange(images) % {CLASSES}

def alone(rows, labels):
    evaluate(rows, labels)

def apart(rows, labels):
    evaluate(rows, labels, gallery_embeddings=rows[::-1].copy(), gallery_labels=labels[::-1], cutoffs=True)

def with_categories(rows, labels):
    evaluate(rows, labels, categories=labels // 2)

def report(rows, labels):
    names, none = np.arange(len(labels)).astype(str), np.full(len(labels), "")
    test = TestSet(labels, names, none, np.full(len(labels), -1))
    evaluate_embeddings(digits.get_config().evaluation, rows, test)

def peak(measure):
    measure(*case(1000))
    rows, labels = case({IMAGES})
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")  # Resets the peak.
    before = held("VmRSS")
    measure(rows, labels)
    return held("VmHWM") - before

print(json.dumps({{name: peak(globals()[name]) for name in NAMES}}))
"""


def peaks(*names):
    ended = run("-c", f"NAMES = {names}\n{PROGRAM}")
    assert not ended.status, ended.errors
    return json.loads(ended.output.splitlines()[-1])


def test_evaluation_of_few_large_classes_takes_the_memory_of_blocks():
    found = peaks("alone")
    assert found["alone"] < MOST < 16 * POSITIVES


@pytest.mark.slow
def test_galleries_categories_cutoffs_and_curves_take_the_memory_of_blocks_too():
    found = peaks("apart", "with_categories", "report")
    assert max(found.values()) < MOST < 16 * POSITIVES, found

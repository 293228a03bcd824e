"""Checks the operations of a SavedModel before TensorFlow loads it, since its graph may be any program.

Operations that TensorFlow marks as stateful may access files, other machines or Python. Only those that an
embedding model needs are allowed (`MODEL_STATE`). The other operations should compute from their inputs alone
and are allowed, except those that access the outside all the same (`REACHING_OUT`). Separate functions save
and restore variables. They may read and write files, as long as nothing else in the model names them.
"""

import re
from collections.abc import Iterator

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tfrank.common.checks import InputError

# Variables, calls and branches, random numbers, tables and arrays in memory.
MODEL_STATE = re.compile(
    r"VarHandleOp|VariableV2|ReadVariableOp|Assign(Add|Sub)?VariableOp|VarIsInitializedOp|VariableShape"
    r"|ResourceGather(Nd)?|DisableCopyOnRead|DestroyResourceOp"
    r"|StatefulPartitionedCall|If|While|Case|Assert|CheckNumerics(V2)?|Empty|GuaranteeConst"
    r"|Random(Uniform|UniformInt|StandardNormal|Shuffle|Gamma|Poisson|PoissonV2)|TruncatedNormal|Multinomial"
    r"|Stateful(Uniform|UniformInt|UniformFullInt|StandardNormalV2|TruncatedNormal)|StatelessRandomGetAlg"
    r"|Rng(Skip|ReadAndSkip)|SampleDistortedBoundingBox(V2)?"
    r"|(Anonymous|Mutable|AnonymousMutable)?HashTable(V2)?|InitializeTableV2|LookupTable\w+V2"
    r"|TensorArray(Grad|Write|Read|Gather|Scatter|Concat|Split|Size|Close)?V3|Stack(V2|PushV2|PopV2|CloseV2)"
)
REACHING_OUT = re.compile(
    # Read files, or run a data pipeline, which may read files.
    r"ReadFile|MatchingFiles|InitializeTableFromTextFile|GenerateVocabRemapping|ImmutableConst|\w*Proto(V2)?"
    r"|\w*(Dataset|Snapshot|Reader)\w*"
    # Run Python or machine code.
    r"|PyFuncStateless|XlaCustomCall\w*|MlirPassthroughOp"
    # Send their inputs to a file or an address.
    r"|Debug\w+|Copy(Host)?"
)
# Operations allowed in addition in the functions that save and restore variables.
SAVER = {"SaveV2", "MergeV2Checkpoints", "RestoreV2", "ShardedFilename"}
# Reasons for refusing an operation, by a pattern of its name; the first match counts.
REASONS = {
    r"Py": "runs Python",
    r"Xla|Mlir": "runs code of its own",
    r"Rpc|Send|Recv|Remote|Collective|DataService|Nccl": "speaks to other processes",
    r"Write|Save|Checkpoint|Print|Debug|Copy": "may write files",
    r"File|Read|Restore|Dataset|Iterator|Proto|Text|Vocab|ImmutableConst|Snapshot": "may read files",
}


def check_operations(folder: str) -> None:
    """Raises InputError if a SavedModel holds an operation that could do more than compute embeddings.

    Raises:
        OSError: there is no SavedModel, or it is damaged.
    """
    found = sorted(set(filter(_refused, _operations(folder))))
    if found:
        listed = ", ".join(f"{name} ({_reason(name)})" for name in found[:5])
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        raise InputError(
            f"{folder} holds operations that could do more than compute embeddings: {listed}{more}. It was"
            " not loaded. Give --trust_model if you know who made it."
        )


def _operations(folder: str) -> Iterator[str]:
    """Yields the names of all operations that TensorFlow may run once it has loaded a SavedModel."""
    saved = tf.__internal__.saved_model.parse_saved_model(folder)
    for graph in saved.meta_graphs:
        functions = graph.graph_def.library.function
        # The same test as in `tf.saved_model.load`. In files of TensorFlow 2, only functions are run.
        modern = len(saved.meta_graphs) == 1 and graph.HasField("object_graph_def")
        names = {node.op for node in graph.graph_def.node} if not modern else set()
        savers = _savers(graph) if modern else set()
        for function in functions:
            inside = {node.op for node in function.node_def}
            names |= inside - SAVER if function.signature.name in savers else inside
        # A call has the name of its function. A function named like an operation is checked as the operation.
        calls = {f.signature.name for f in functions}
        yield from (name for name in names if name not in calls or op_def_registry.get(name))


def _savers(graph: tf.compat.v1.MetaGraphDef) -> set[str]:
    """The names of the functions that save and restore variables, unless anything else names them."""
    library = graph.graph_def.library
    called = {node.name: node.attr["f"].func.name for node in graph.graph_def.node if "f" in node.attr}
    ends = (graph.saver_def.save_tensor_name.partition(":")[0], graph.saver_def.restore_op_name)
    parts = [(f.signature.name, f.SerializeToString()) for f in library.function]
    parts += [("", part.SerializeToString()) for part in (graph.object_graph_def, *library.gradient)]
    # TensorFlow may swap functions that declare which interface they implement.
    exchanged = {f.signature.name for f in library.function if "api_implements" in f.attr}
    return {
        name
        for name in map(called.get, ends)
        if name
        and name not in exchanged
        and not any(name.encode() in content for owner, content in parts if owner != name)
    }


def _refused(name: str) -> bool:
    definition = op_def_registry.get(name)
    if definition is None or REACHING_OUT.fullmatch(name):
        return True
    return definition.is_stateful and not MODEL_STATE.fullmatch(name)


def _reason(name: str) -> str:
    if op_def_registry.get(name) is None:
        return "is not one of TensorFlow's"
    return next((why for part, why in REASONS.items() if re.search(part, name)), "may act outside of it")

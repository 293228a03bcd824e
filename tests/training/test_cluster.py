"""The machines of a run find each other, and whoever is missing or in the way is named."""

import concurrent.futures
import contextlib
import json
import signal
import socket
import threading
import time

import pytest

from tests.command_lines import accept_interrupt
from tfrank.common.checks import InputError
from tfrank.training.cluster import Cluster, read_cluster, wait_for_workers


def free_ports(count: int) -> list[int]:
    """So many ports that nobody listens on just now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]


def addresses(count: int) -> tuple[str, ...]:
    return tuple(f"localhost:{port}" for port in free_ports(count))


def environment(workers, index) -> dict[str, str]:
    """TF_CONFIG of one of the workers."""
    config = {"cluster": {"worker": list(workers)}, "task": {"type": "worker", "index": index}}
    return {"TF_CONFIG": json.dumps(config)}


# What TF_CONFIG says.


def test_the_cluster_is_read_from_the_environment():
    workers = ("host-0.net:123", "10.0.0.2:65535")
    assert read_cluster(environment(workers, 1)) == Cluster(workers, 1)


TASK = {"type": "worker", "index": 0}
TWO = ["a:1", "b:2"]
BAD_CONFIGS = {
    "not set": (None, "It is not set"),
    "empty": ("", "It is not set"),
    "not JSON": ("{'cluster'", "cannot be read"),
    "a list": ([TASK], "cannot be read"),
    "a number": (3, "cannot be read"),
    "null": ("null", "cannot be read"),
    "no cluster": ({"task": TASK}, "cannot be read .*cluster"),
    "a cluster that is a list": ({"cluster": [TWO], "task": TASK}, "cannot be read"),
    "no workers": ({"cluster": {"chief": TWO}, "task": TASK}, "cannot be read .*worker"),
    "no task": ({"cluster": {"worker": TWO}}, "cannot be read .*task"),
    "a task that is a list": ({"cluster": {"worker": TWO}, "task": [0]}, "cannot be read"),
    "no index": ({"cluster": {"worker": TWO}, "task": {"type": "worker"}}, "cannot be read .*index"),
    # TensorFlow needs it.
    "no type": ({"cluster": {"worker": TWO}, "task": {"index": 0}}, "read .*type|is a worker"),
    "another job": ({"cluster": {"worker": TWO, "ps": ["c:3"]}, "task": TASK}, "is a worker"),
    "another task": ({"cluster": {"worker": TWO}, "task": {"type": "evaluator", "index": 0}}, "is a worker"),
    "a text of workers": ({"cluster": {"worker": "a:1"}, "task": TASK}, "not a list"),
    "workers by number": ({"cluster": {"worker": {"0": "a:1"}}, "task": TASK}, "not a list"),
    "a worker that is a number": ({"cluster": {"worker": ["a:1", 2]}, "task": TASK}, "not a list"),
    "no worker": ({"cluster": {"worker": []}, "task": TASK}, "not a list of addresses"),
    "no port": ({"cluster": {"worker": ["a:1", "host"]}, "task": TASK}, "'host' is not an address"),
    "an empty port": ({"cluster": {"worker": ["a:1", "b:"]}, "task": TASK}, "'b:' is not an address"),
    "a port in words": ({"cluster": {"worker": ["a:1", "b:http"]}, "task": TASK}, "is not an address"),
    "a port too large": ({"cluster": {"worker": ["a:1", "b:65536"]}, "task": TASK}, "is not an address"),
    "no host": ({"cluster": {"worker": [":1", "b:2"]}, "task": TASK}, "':1' is not an address"),
    "one address twice": ({"cluster": {"worker": ["a:1", "a:1"]}, "task": TASK}, "same address"),
    **{
        f"index {index!r}": ({"cluster": {"worker": TWO}, "task": {**TASK, "index": index}}, "not from 0")
        for index in (-1, 2, "0", True, 1.0, None)
    },
}


@pytest.mark.parametrize("content, reason", BAD_CONFIGS.values(), ids=BAD_CONFIGS)
def test_a_bad_tf_config_is_refused_in_one_line_that_shows_a_good_one(content, reason):
    text = content if isinstance(content, str) else json.dumps(content)
    with pytest.raises(InputError, match=reason) as error:
        read_cluster({} if content is None else {"TF_CONFIG": text})
    assert '"task": {"type": "worker", "index": 0}' in str(error.value)
    assert "\n" not in str(error.value)


# How they find each other.


class Waiting:
    """Workers that wait for each other, each in a thread."""

    def __init__(self, workers, *, seconds=20):
        self.workers, self._seconds = workers, seconds

    def start(self, index):
        """The future of one of them; it goes to sleep with the process, should it wait forever."""
        future = concurrent.futures.Future()

        def wait():
            try:
                future.set_result(wait_for_workers(Cluster(self.workers, index), seconds=self._seconds))
            except Exception as error:
                future.set_exception(error)

        threading.Thread(target=wait, daemon=True).start()
        return future

    def until(self, condition):
        """Until it holds; fails after 10 s."""
        end = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.01)


def port_of(address):
    return int(address.rpartition(":")[2])


def connect(address):
    return socket.create_connection(("localhost", port_of(address)), timeout=5)


def is_listening(address):
    try:
        connect(address).close()
    except OSError:
        return False
    return True


def test_workers_that_all_start_find_each_other():
    waiting = Waiting(addresses(3))
    for worker in [waiting.start(index) for index in (2, 0, 1)]:
        worker.result(20)


def test_a_worker_that_is_alone_waits_for_nobody():
    started = time.monotonic()
    wait_for_workers(Cluster(addresses(1), 0))
    assert time.monotonic() - started < 1


def test_those_who_do_not_start_in_time_are_named_and_no_others():
    waiting = Waiting(addresses(4), seconds=2)
    names = f"1 \\({waiting.workers[1]}\\), 3 \\({waiting.workers[3]}\\)"
    started = time.monotonic()
    for worker in [waiting.start(0), waiting.start(2)]:
        with pytest.raises(InputError, match=f"^Workers {names} did not start within 2 s\\.$"):
            worker.result(20)
    assert 2 < time.monotonic() - started < 10


def test_one_who_comes_late_is_waited_for_with_a_message_that_is_not_repeated_at_once(caplog):
    caplog.set_level("INFO")
    waiting = Waiting(addresses(2))
    first = waiting.start(0)
    waiting.until(lambda: caplog.messages)
    time.sleep(0.5)
    assert caplog.messages == [f"Waiting for workers 1 ({waiting.workers[1]})"]
    assert not first.done()
    for worker in [first, waiting.start(1)]:
        worker.result(20)


def test_one_who_is_heard_but_does_not_listen_is_waited_for(caplog):
    """A firewall in one direction: TensorFlow needs both."""
    caplog.set_level("INFO")
    waiting = Waiting(addresses(2), seconds=2)
    worker = waiting.start(0)
    waiting.until(lambda: caplog.messages)
    with connect(waiting.workers[0]) as other:
        other.sendall(b"1\n")
    with pytest.raises(InputError, match="Workers 1 "):
        worker.result(20)


def test_one_who_listens_and_says_something_else_is_no_worker(caplog):
    caplog.set_level("INFO")
    workers = addresses(2)
    with socket.socket() as other:
        other.bind(("localhost", port_of(workers[1])))
        other.listen()
        waiting = Waiting(workers, seconds=2)
        worker = waiting.start(0)
        waiting.until(lambda: caplog.messages)
        for junk in (b"GET / HTTP/1.1\r\n\r\n", b"\xff\xfe", b"", b"7\n", b"-1\n", b"0\n"):
            with connect(workers[0]) as stray:
                stray.sendall(junk)
        with pytest.raises(InputError, match=r"Workers 1 \("):
            worker.result(20)


@pytest.mark.slow
def test_those_who_connect_and_say_nothing_do_not_keep_others_out():
    waiting = Waiting(addresses(2))
    first = waiting.start(0)
    waiting.until(lambda: is_listening(waiting.workers[0]))
    with connect(waiting.workers[0]), connect(waiting.workers[0]):
        for worker in [first, waiting.start(1)]:
            worker.result(15)


def test_a_port_in_use_is_named_at_once():
    workers = addresses(2)
    with socket.socket() as other:
        other.bind(("", port_of(workers[0])))
        other.listen()
        with pytest.raises(InputError, match=f"Cannot listen on {workers[0]}, the address of worker 0"):
            wait_for_workers(Cluster(workers, 0), seconds=5)


def test_a_port_that_does_not_exist_is_named_at_once():
    with pytest.raises(InputError, match="host:99999"):
        wait_for_workers(Cluster(("host:99999", *addresses(1)), 0), seconds=5)


def test_the_port_is_free_again_for_tensorflow():
    waiting = Waiting(addresses(2))
    for worker in [waiting.start(0), waiting.start(1)]:
        worker.result(20)
    for address in waiting.workers:
        with socket.socket() as next_one:
            next_one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            next_one.bind(("", port_of(address)))
            next_one.listen()


def test_ctrl_c_ends_the_wait():
    accept_interrupt()
    interrupt = threading.Timer(0.5, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    interrupt.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        wait_for_workers(Cluster(addresses(2), 0), seconds=10)
    assert time.monotonic() - started < 5

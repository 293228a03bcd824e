"""Requests that schemathesis makes up from the description of the endpoints."""

import hypothesis
import pytest

from tests.search.server import servers

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
conformance = pytest.importorskip("schemathesis.specs.openapi.checks")
pytestmark = pytest.mark.slow
ALL = hypothesis.HealthCheck


@pytest.fixture(scope="module")
def operations(tmp_path_factory, model, images):
    """The endpoints of a server whose index may be changed."""
    folder = servers.make_index(tmp_path_factory.mktemp("fuzzed") / "index", model, images)
    with servers.serving(folder, "--max_megabytes=0.5") as server:
        schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
        yield [found.ok() for found in schema.get_all_operations()]


def test_no_request_makes_the_server_fail_and_answers_are_as_described(operations):
    headers = {"Authorization": f"Bearer {servers.TOKEN}"}
    checks = (
        schemathesis.checks.not_a_server_error,
        conformance.status_code_conformance,
        conformance.content_type_conformance,
        conformance.response_schema_conformance,
    )

    def tried(operation):
        @hypothesis.settings(max_examples=30, deadline=None, database=None, suppress_health_check=list(ALL))
        @hypothesis.given(case=operation.as_strategy())
        def one(case):
            case.call_and_validate(headers=headers, checks=checks)

        one()

    assert len(operations) == 20
    for operation in operations:
        tried(operation)

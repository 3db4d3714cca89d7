"""The description of the protocol in OpenAPI is that of the service: routes, answers, errors."""

import fcntl
import inspect
import json
import os
import re
import signal
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import get_args
from unittest.mock import MagicMock

import httpx
import numpy as np
import openapi_spec_validator
import pytest
from jsonschema import Draft202012Validator

from distscan.core.operators import BUILTIN
from distscan.core.steps import Strategy
from distscan.job.job import FileJob
from distscan.job.report import Report
from distscan.service import activity, app, arrays, dispatch, errors, protocol, scans, store
from support import services
from support.services import TOKEN, long_file, npy, over_tcp, serving, wait_until

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_rank]
PATH = Path(app.__file__).with_name("openapi.json")
FOLLOWERS = 100  # clients that may follow a service
METHODS = "get", "post", "put", "patch", "delete"


def resolved(schema):
    """Return the schema that a reference names."""
    while "$ref" in schema:
        name = schema["$ref"]
        schema = DOCUMENT
        for part in name.removeprefix("#/").split("/"):
            schema = schema[part]
    return schema


def strict(schema):
    """Refuse all but the named properties: an answer that grows must be described."""
    return schema | {"additionalProperties": False} if "properties" in schema else schema


DOCUMENT = json.loads(PATH.read_text())
STRICT = json.loads(PATH.read_text(), object_hook=strict)
SCHEMAS = DOCUMENT["components"]["schemas"]
OPERATIONS = {
    (path, method.upper()): item[method]
    for path, item in DOCUMENT["paths"].items()
    for method in METHODS
    if method in item
}


def validate(value, schema):
    """Compare a value with a schema of the document."""
    Draft202012Validator(schema | {"components": STRICT["components"]}).validate(value)


def test_it_is_openapi():
    openapi_spec_validator.validate(DOCUMENT)
    names = [operation["operationId"] for operation in OPERATIONS.values()]
    assert len(names) == len(set(names))
    assert DOCUMENT["info"]["version"] == str(protocol.VERSION)


def made_of_stand_ins(kind, **parts):
    """An object whose parts are not used, but those that are passed."""
    return kind(**{name: MagicMock() for name in inspect.signature(kind).parameters} | parts)


def test_its_routes_are_those_of_the_service():
    """But for the files of the page."""
    page = {route.path for route in app._page_routes()}
    stand_in = made_of_stand_ins(app.App, scans=made_of_stand_ins(scans.Scans))
    routes = {
        (route.path_format, method)
        for route in stand_in.asgi.routes
        if route.path not in page
        for method in route.methods - {"HEAD"}
    }
    assert routes == OPERATIONS.keys()


def test_its_names_are_those_of_the_code():
    for schema, names in (
        ("Request", dispatch.job_to_json(FileJob.parse((), Path("y.npy")))),
        ("Report", Report._fields),
        ("Progress", dispatch.Progress._fields),
        ("Place", arrays.Place._fields),
        ("ArrayScan", activity.ArrayScan._fields),
        ("Sample", activity.Sample._fields),
        ("Job", (*store.Record._fields, "progress")),
    ):
        assert SCHEMAS[schema]["properties"].keys() == set(names)
    for names_there, names in (
        (SCHEMAS["Op"]["enum"], {*BUILTIN, "fsum"}),
        (SCHEMAS["Strategy"]["enum"], get_args(Strategy)),
        (SCHEMAS["Error"]["properties"]["type"]["enum"], {*errors._TYPES, "Exception"}),
    ):
        assert len(names_there) == len(set(names_there))
        assert set(names_there) == set(names)
    assert set(SCHEMAS["Job"]["properties"]["state"]["enum"]) > set(protocol.ENDED)


# ---- answers of a service ------------------------------------------------------------------------


class Talk:
    """Requests to a service; each answer must be one of those in the document."""

    def __init__(self, address):
        head = {"authorization": f"Bearer {TOKEN}"}
        self.http = httpx.Client(base_url=address, headers=head, limits=httpx.Limits())
        self.seen = set()

    def __call__(self, method, url, **arguments):
        return self._checked(method, url, self.http.request(method, url, **arguments))

    def follow(self, streams):
        """Open a stream of events until ``streams`` closes it; return the answer."""
        answer = streams.enter_context(self.http.stream("GET", "/v1/events"))
        return self._checked("GET", "/v1/events", answer)

    def _checked(self, method, url, answer):
        path = next(path for path, _ in OPERATIONS if re.fullmatch(
            re.sub("{.*}", "[0-9]+", path), httpx.URL(url).path))  # fmt: skip
        status = str(answer.status_code)
        described = OPERATIONS[path, method]["responses"][status]
        content = resolved(described).get("content", {"": {}})  # without it, there is no body
        media = answer.headers.get("content-type", "").partition(";")[0]
        assert media in content
        if media == "application/json" and "schema" in content[media]:
            validate(answer.json(), content[media]["schema"])
        self.seen.add((path, method, status))
        return answer


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("openapi")
    limits = ["--body", "4000000", "--queue", "1", "--memory", "16000000"]
    with serving(folder, 1, *over_tcp(folder), *limits) as service:
        yield service


@pytest.fixture
def streams():
    """Streams that are open."""
    with ExitStack() as stack:
        yield stack


def wait_for(talk, url, state, name="state"):
    """Wait until a job, or the service, is in a state."""
    wait_until(lambda: talk("GET", url).json()[name] == state)


def check_what_every_request_brings(talk):
    """The token, and the protocol; and no page of another site may send it."""
    for path, method in OPERATIONS:
        other = {"origin": "https://example.org"}
        assert talk(method, path.replace("{number}", "1"), headers=other).status_code == 403
        if path != "/healthz":
            url = path.replace("{number}", "1")
            assert talk(method, url, headers={"authorization": "no"}).status_code == 401
            assert talk(method, url, headers={"distscan-protocol": "99"}).status_code == 426


def check_arrays(talk, x):
    """An array in the body."""
    y = talk("POST", "/v1/scans?reverse=true&axis=0", content=npy(x)).content
    np.testing.assert_array_equal(np.load(BytesIO(y)), x[::-1].cumsum()[::-1])
    assert talk("POST", "/v1/scans?op=none", content=npy(x)).status_code == 400
    assert talk("POST", "/v1/scans", content=bytes(5_000_000)).status_code == 413


def check_buffers(talk):
    """An array in memory that the service shares."""
    buffer = talk("POST", "/v1/buffers", json={"bytes": 8000}).json()
    place = {"path": buffer["path"], "offset": 0, "dtype": "<f8", "shape": [1000]}
    request = {"x": place, "out": place}
    validate(request, {"$ref": "#/components/schemas/Shared"})
    with open(buffer["path"], "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(np.ones(1000).tobytes())
        file.flush()
        assert talk("POST", "/v1/scans", json=request).status_code == 204
        file.seek(0)
        np.testing.assert_array_equal(np.frombuffer(file.read(8000)), np.arange(1, 1001))
        answers = [talk("POST", "/v1/buffers", json={"bytes": 4_000_000}) for _ in range(9)]
    assert {answer.status_code for answer in answers} == {201, 429}
    assert talk("POST", "/v1/scans", content=npy(np.zeros(200_000))).status_code == 429
    lost = request | {"x": place | {"path": "/none"}}
    assert talk("POST", "/v1/scans", json=lost).status_code == 404
    assert talk("POST", "/v1/buffers", json={}).status_code == 400
    assert talk("POST", "/v1/buffers", json={"bytes": 1 << 40}).status_code == 413


def check_number_of_followers(talk):
    """So many may follow the service at a time, and one does already; others may follow later."""
    with ExitStack() as streams:
        for _ in range(FOLLOWERS - 1):
            talk.follow(streams)
        assert talk("GET", "/v1/events").status_code == 429
    with ExitStack() as streams:
        wait_until(lambda: talk.follow(streams).status_code == 200, 10)


def check_events(stream, talk, number):
    """Read them until all kinds have come; each has the form that the document describes.

    Then look at what the service has done: a job of this ``number`` runs.
    """
    kinds = {"snapshot": "Snapshot", "job": "Job", "progress": "JobProgress", "service": "State"}
    missing = {*kinds, "retry"}
    while missing:
        name, data, _ = next(stream)
        missing.discard(name)
        if name in kinds:
            validate(data, {"$ref": f"#/components/schemas/{kinds[name]}"})
    check_activity(talk, number)


def check_activity(talk, number):
    """While a job runs, after others and after arrays."""
    assert talk("GET", "/v1/activity?after=x").status_code == 400
    wait_until(lambda: talk("GET", "/v1/activity").json()["samples"])
    wait_until(lambda: talk("GET", "/v1/activity").json()["running"])
    recent = talk("GET", "/v1/activity?after=0").json()
    assert recent["running"]["number"] == number
    assert recent["jobs"]
    assert recent["scans"]


def test_answers(service, rng, streams):
    """Every answer that is described, but those to faults of the service, is seen here."""
    talk, folder = Talk(service.address), service.folder
    np.save(folder / "x.npy", rng.integers(0, 9, 1000))
    small = {"inputs": [str(folder / "x.npy")], "output": str(folder / "y.npy"), "force": True}
    long = small | {"inputs": [str(long_file(folder))], "output": str(folder / "z.npy")}
    for request in (small, long):
        validate(request, {"$ref": "#/components/schemas/Request"})

    check_what_every_request_brings(talk)
    stream = services.events(talk.follow(streams).iter_lines())
    check_number_of_followers(talk)
    assert talk("GET", "/v1").json()["ranks"] == 1
    assert talk("GET", "/v1/openapi.json").json() == DOCUMENT
    assert talk("GET", "/healthz").json() == {"status": "ok"}
    assert "distscan_jobs_queued 0.0" in talk("GET", "/metrics").text

    check_arrays(talk, rng.integers(0, 9, 1000))
    check_buffers(talk)

    key = {"idempotency-key": "once"}
    number = talk("POST", "/v1/jobs", json=small, headers=key).json()["number"]
    record = talk("GET", f"/v1/jobs/{number}?wait=30").json()
    assert (record["state"], record["report"]["elements"]) == ("done", 1000)
    other = small | {"op": "max"}
    assert talk("POST", "/v1/jobs", json=other, headers=key).status_code == 409
    assert talk("POST", "/v1/jobs", json=small | {"no": 1}).status_code == 400
    assert talk("POST", "/v1/jobs", content=b" " * (2 << 20)).status_code == 413
    assert talk("POST", "/v1/jobs", json=small | {"output": "/etc/y.npy"}).status_code == 403
    assert talk("GET", "/v1/jobs?most=x").status_code == 400
    for method in ("GET", "DELETE"):
        assert talk(method, "/v1/jobs/77").status_code == 404
        assert talk(method, f"/v1/jobs/{1 << 70}").status_code == 400

    runs = talk("POST", "/v1/jobs", json=long).json()["number"]
    wait_for(talk, f"/v1/jobs/{runs}", "running")
    waits = talk("POST", "/v1/jobs", json=small | {"inputs": [str(folder / "none.npy")]}).json()
    refusal = talk("POST", "/v1/jobs", json=small)
    assert (refusal.status_code, refusal.json()["error"]["type"]) == (429, "BusyError")
    assert "1 jobs wait already" in refusal.json()["error"]["message"]
    jobs = talk("GET", "/v1/jobs").json()["jobs"]
    assert [job["state"] for job in jobs] == ["queued", "running", "done"]
    check_events(stream, talk, runs)
    talk("DELETE", f"/v1/jobs/{runs}")
    failed = talk("GET", f"/v1/jobs/{waits['number']}?wait=30").json()
    assert talk("DELETE", f"/v1/jobs/{waits['number']}").status_code == 409
    assert (failed["state"], failed["error"]["type"]) == ("failed", "InputError")

    runs = talk("POST", "/v1/jobs", json=long).json()["number"]
    wait_for(talk, f"/v1/jobs/{runs}", "running")
    os.kill(*service.ranks_of(), signal.SIGTERM)
    wait_for(talk, "/healthz", "ending", "status")
    talk("DELETE", f"/v1/jobs/{runs}")
    assert service.wait() == 0
    streams.close()
    talk.http.close()
    described = {
        (path, method, status)
        for (path, method), operation in OPERATIONS.items()
        for status in operation["responses"].keys() - {"default"}
    }
    assert talk.seen == described

"""A query parameter that a route does not know is refused: a misspelled filter finds everything."""

import pytest
from test_access import ENDLESS, MATRIX, ask

NOT_ASKED = {("GET", "/openapi.json"), *ENDLESS}
PUSHED = ("POST", "/v1/requests/{job_id}/callback/{token}")


async def test_every_route_refuses_a_parameter_that_it_does_not_know(api):
    for method, path in MATRIX:
        if (method, path) in NOT_ASKED:
            continue
        asked = ask(method, path)
        answer = await api.request(**{**asked, "url": asked["url"] + "?stat=FAILED"})
        if (method, path) == PUSHED:
            assert answer.status_code == 404  # a partner may add what it likes to its address
            continue
        assert answer.status_code == 422, path
        assert answer.json()["type"].endswith("unknown-parameter")
        assert "'stat'" in answer.json()["detail"]


@pytest.mark.parametrize("path", ["/v1/events?knd=convert", "/v1/jobs?stat=FAILED&state=FAILED"])
async def test_the_ones_that_there_are_are_named(api, path):
    answer = await api.get(path)
    assert answer.status_code == 422
    assert "kind" in answer.json()["detail"]
    assert answer.json()["errors"][0]["where"].startswith("query.")

"""The examination of a machine: each finding carries limit, value and remedy, and failures decide the exit code."""

from __future__ import annotations

import json
import socket
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from runtime import doctor as module
from runtime.chat.script import Fault, Reply
from runtime.chat.scripted import ScriptedServer
from runtime.doctor import Finding, examine, show_findings
from runtime.http_server import serving
from runtime.settings import Settings, load_settings
from sandbox.docker.pools import DEFAULTS, free_subnets


def settings(tmp_path: Path, *sets: str) -> Settings:
    return load_settings(sets=[f"paths.state={tmp_path / 'state'}", f"paths.cache={tmp_path / 'cache'}", *sets])


def one(findings: list[Finding], check: str) -> Finding:
    return next(finding for finding in findings if finding.check == check)


async def test_a_sound_machine_has_no_failure_and_nothing_is_left_behind(tmp_path):
    findings = await examine(settings(tmp_path))
    assert not [finding for finding in findings if finding.level == "failure" and finding.check != "engine docker"]
    assert all(finding.limit and finding.value for finding in findings)
    assert list((tmp_path / "state").glob("*")) == []


async def test_too_many_sessions_are_told_with_the_limit_and_a_remedy(tmp_path):
    findings = await examine(settings(tmp_path, "limits.run=100000000"))
    for check in ("descriptors", "processes", "memory"):
        found = one(findings, check)
        assert found.level == "failure"
        assert "limits.run" in found.remedy


async def test_a_state_directory_that_cannot_be_used_is_a_failure(tmp_path):
    (tmp_path / "file").write_text("")
    findings = await examine(settings(tmp_path, f"paths.state={tmp_path / 'file' / 'state'}"))
    assert one(findings, "store").level == "failure"
    assert one(findings, "store").remedy


async def test_the_endpoint_is_called_once_and_its_answer_reported(tmp_path):
    async with ScriptedServer([Reply(text="ok")]) as server:
        findings = await examine(settings(tmp_path, f"chat.base_url={server.base_url}", "chat.model=any"))
        assert server.calls == {"doctor": 1}
    assert one(findings, "endpoint").level == "ok"


async def test_an_endpoint_that_refuses_the_key_is_a_failure_with_its_status(tmp_path):
    async with ScriptedServer([Fault(status=401)]) as server:
        findings = await examine(settings(tmp_path, f"chat.base_url={server.base_url}", "chat.model=any"))
    assert one(findings, "endpoint").level == "failure"
    assert "401" in one(findings, "endpoint").value


@asynccontextmanager
async def policy_server(shift: int):
    """Answers as the native interface does; `shift` off, it does not echo what it was sent."""

    async def generate(request: Request) -> JSONResponse:
        body = json.loads(await request.body())
        echoed = [[None, token + shift, None] for token in body["input_ids"]]
        return JSONResponse({"meta_info": {"input_token_logprobs": echoed, "output_token_logprobs": [[-0.5, 9, None]]}})

    app = Starlette(routes=[Route("/generate", generate, methods=["POST"])])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with serving(app, listener):
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"


@pytest.mark.parametrize(("shift", "level"), [(0, "ok"), (1, "failure")])
async def test_token_ids_must_come_back_as_they_were_sent(tmp_path, shift, level):
    async with policy_server(shift) as base_url:
        found = one(await examine(settings(tmp_path, f"chat.base_url={base_url}")), "token ids")
    assert found.level == level


async def test_an_endpoint_without_token_ids_is_good_for_generation(tmp_path):
    async with ScriptedServer([Reply(text="ok")]) as server:
        found = one(await examine(settings(tmp_path, f"chat.base_url={server.base_url}")), "token ids")
    assert (found.level, "not for training" in found.value) == ("note", True)


@asynccontextmanager
async def docker_api(tmp_path: Path, used: int):
    """The part of the engine's API that tells pools and networks: `used` subnets of four are taken."""

    async def info(_: Request) -> JSONResponse:
        return JSONResponse({"DefaultAddressPools": [{"Base": "10.9.0.0/22", "Size": 24}]})

    async def networks(_: Request) -> JSONResponse:
        taken = [{"IPAM": {"Config": [{"Subnet": f"10.9.{n}.0/24"}]}} for n in range(used)]
        return JSONResponse([*taken, {"Name": "none", "IPAM": {"Config": None}}])

    async def version(_: Request) -> JSONResponse:
        return JSONResponse({"ApiVersion": "1.44", "Os": "linux"})

    routes = [(name, handler) for name, handler in (("info", info), ("networks", networks), ("version", version))]
    app = Starlette(
        routes=[Route(f"{prefix}/{name}", handler) for name, handler in routes for prefix in ("", "/{api}")]
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with serving(app, listener):
            yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(("used", "level"), [(0, "ok"), (2, "warning"), (4, "failure")])
async def test_address_pools_that_run_out_are_told_before_a_network_is_refused(tmp_path, used, level):
    async with docker_api(tmp_path, used) as url:
        found = one(await module._address_pools(settings(tmp_path, f"sandbox.docker_url={url}")), "address pools")
    assert (found.level, f"{4 - used} free of 4" in found.value) == (level, True)
    assert bool(found.remedy) == (level != "ok")


async def test_where_the_daemonless_engine_is_chosen_docker_is_not_looked_at(tmp_path):
    async with docker_api(tmp_path, used=4) as url:
        chosen = settings(tmp_path, f"sandbox.docker_url={url}", "sandbox.engine=namespace")
        assert await module._address_pools(chosen) == []
        assert await module._daemon_descriptors(chosen) == []


def test_a_subnet_may_be_written_with_any_of_its_addresses():
    assert free_subnets([("10.9.0.1/22", 24)], ["10.9.1.7/24"]) == (4, 3)


def test_the_default_pools_of_an_engine_hold_thirty_one_networks():
    assert free_subnets(DEFAULTS, ["172.17.0.0/16", "192.168.1.0/24", "10.0.0.0/8", "fd00::/64"]) == (31, 29)


async def test_a_docker_daemon_without_descriptors_for_so_many_sessions_is_told(tmp_path):
    address = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as daemon:  # of this very process
        daemon.bind(str(address))
        daemon.listen()
        where = f"sandbox.docker_url=unix://{address}"
        many = await module._daemon_descriptors(settings(tmp_path, where, "limits.run=100000000"))
        few = await module._daemon_descriptors(settings(tmp_path, where, "limits.run=1"))
    assert [(found.level, "LimitNOFILE" in found.remedy) for found in many] == [("failure", True)]
    assert [found.level for found in few] == ["ok"]
    assert await module._daemon_descriptors(settings(tmp_path, where)) == []  # nobody listens any more


async def test_a_bus_that_does_not_answer_is_a_failure(tmp_path):
    findings = await examine(settings(tmp_path, "daemon.bus=nats://127.0.0.1:9"))
    assert one(findings, "bus").level == "failure"


@pytest.mark.nats
async def test_a_message_goes_there_and_back_over_the_configured_bus(tmp_path, nats_url):
    for _ in range(2):  # the server remembers the first one's message
        findings = await examine(settings(tmp_path, f"daemon.bus={nats_url}"))
        assert one(findings, "bus").level == "ok"


async def test_a_check_that_breaks_is_a_finding(tmp_path, monkeypatch):
    async def broken(_: Settings) -> list[Finding]:
        raise ZeroDivisionError("a bug")

    monkeypatch.setitem(module.CHECKS, "gpu", broken)
    assert "a bug" in one(await examine(settings(tmp_path)), "gpu").value


def test_a_failure_decides_the_exit_code_and_json_holds_every_finding(capsys):
    bad = Finding(check="disk", level="failure", limit="10 MB", value="1 MB", remedy="Free some")
    assert show_findings([bad], as_json=True) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["remedy"] == "Free some"
    assert show_findings([Finding(check="disk", level="warning", limit="10 MB", value="9 MB")], as_json=False) == 0
